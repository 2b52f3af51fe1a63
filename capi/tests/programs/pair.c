/* A warm pair through the C interface: an allocation and its free, on an opened stream and by a driver's handle. */
#define _POSIX_C_SOURCE 199309L
#include "aquifer.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

static void check(const aquifer_api *api, aquifer_status status) {
  if (status != AQUIFER_OK) {
    fprintf(stderr, "%s: %s\n", api->status_name(status), api->last_error());
    exit(1);
  }
}

int main(void) {
  const aquifer_api *api = aquifer_get_api(AQUIFER_ABI_MAJOR);
  aquifer_stack *stack;
  aquifer_stream *stream;
  void *handle, *pointer;
  check(api, api->stack_create("pool(cuda)", 0, &stack));
  check(api, api->stream_create(0, &stream));
  check(api, api->stream_handle(stream, &handle));
  const size_t sizes[] = {256, 1 << 20};
  for (int which = 0; which < 2; which++) {
    size_t bytes = sizes[which];
    double best = 1e9, by_handle = 1e9, by_torch = 1e9;
    for (int round = 0; round < 7; round++) {
      const int pairs = 1000000;
      double start = now();
      for (int pair = 0; pair < pairs; pair++) {
        check(api, api->allocate(stack, bytes, 0, stream, &pointer));
        check(api, api->deallocate(pointer, bytes, stream));
      }
      double took = (now() - start) / pairs;
      if (took < best) best = took;
      start = now();
      for (int pair = 0; pair < pairs / 10; pair++) {
        check(api, api->allocate_on(stack, bytes, 0, handle, &pointer));
        check(api, api->deallocate_on(pointer, bytes, 0, handle));
      }
      took = (now() - start) / (pairs / 10);
      if (took < by_handle) by_handle = took;
      start = now();
      for (int pair = 0; pair < pairs; pair++) {
        pointer = aquifer_torch_alloc_nothrow(bytes, 0, handle);
        aquifer_torch_free(pointer, bytes, 0, handle);
      }
      took = (now() - start) / pairs;
      if (took < by_torch) by_torch = took;
    }
    printf("pair of %zu bytes: opened stream %.1f ns, by handle %.1f ns, PyTorch's entry points %.1f ns\n",
           bytes, best, by_handle, by_torch);
  }
  check(api, api->stream_close(stream));
  check(api, api->stack_release(stack));
  return 0;
}
