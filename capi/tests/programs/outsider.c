/* All functions of the table, as a careful program uses them. Its argument is a folder for a log. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>

static const aquifer_api *api;

static aquifer_statistics statistics_of(aquifer_stack *stack) {
  aquifer_statistics statistics = {.struct_size = sizeof statistics};
  OK(api->statistics(stack, &statistics));
  CHECK(statistics.struct_size == sizeof statistics);
  return statistics;
}

static void table(void) {
  CHECK(api->struct_size >= sizeof *api);
  CHECK(api->abi_major == AQUIFER_ABI_MAJOR);
  CHECK(aquifer_get_api(AQUIFER_ABI_MAJOR) == api);
  CHECK(strchr(api->version(), '.') != NULL);
  CHECK(api->last_error()[0] == '\0');
  for (int32_t code = AQUIFER_OK; code <= AQUIFER_ERROR_ASLEEP; code++)
    CHECK(strncmp(api->status_name(code), "AQUIFER_", 8) == 0);
  CHECK(strcmp(api->status_name(AQUIFER_ERROR_FREED_BEFORE), "AQUIFER_ERROR_FREED_BEFORE") == 0);
  CHECK(strcmp(api->status_name(18), "no code of aquifer") == 0);
  CHECK(strcmp(api->status_name(-1), "no code of aquifer") == 0);
}

static void stacks(void) {
  aquifer_stack *stack, *own, *again;
  OK(api->stack_create(NULL, 0, &stack));
  OK(api->stack_retain(stack));
  OK(api->stack_release(stack));
  CHECK(statistics_of(stack).live_bytes == 0);
  OK(api->stack_release(stack));
  GIVES(AQUIFER_ERROR_CLOSED, api->stack_retain(stack));
  OK(api->stack_default(0, &own));
  OK(api->stack_default(0, &again));
  CHECK(own == again && own != stack);
}

/* A stack that sleeps: its blocks come back with what they had, at their addresses. */
static void sleep_and_wake(const char *folder) {
  aquifer_stack *stack;
  void *block, *dropped, *refused, *host;
  size_t bytes;
  OK(api->stack_create("pool(virtual)", 0, &stack));
  OK(api->allocate_on(stack, 3 << 20, 0, NULL, &block));
  OK(api->allocate_on(stack, 5 << 20, 0, NULL, &dropped));
  OK(api->host_allocate(16, 0, 0, &host));
  const uint32_t keeps[] = {AQUIFER_KEEP_PAGE_LOCKED, AQUIFER_KEEP_FILE, AQUIFER_KEEP_NOTHING};
  for (int which = 0; which < 3; which++) {
    OK(api->stack_sleep(stack, keeps[which], folder, &bytes));
    CHECK(bytes >= 4 << 20);
    GIVES(AQUIFER_ERROR_ASLEEP, api->stack_sleep(stack, keeps[which], folder, NULL));
    GIVES(AQUIFER_ERROR_ASLEEP, api->allocate_on(stack, 100, 0, NULL, &refused));
    if (which == 0) OK(api->deallocate_on(dropped, 5 << 20, 0, NULL));
    OK(api->stack_wake(stack));
    GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_wake(stack));
    OK(api->allocate_on(stack, 100, 0, NULL, &refused));
    OK(api->deallocate_on(refused, 100, 0, NULL));
  }
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_sleep(stack, 3, NULL, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_sleep(stack, AQUIFER_KEEP_FILE, NULL, NULL));
  GIVES(AQUIFER_ERROR_IO, api->stack_sleep(stack, AQUIFER_KEEP_FILE, "/proc/nowhere", NULL));
  OK(api->host_deallocate(host));
  OK(api->deallocate_on(block, 3 << 20, 0, NULL));
  OK(api->stack_release(stack));
  /* It takes blocks, and says which stack does not. */
  OK(api->stack_create("pool(cuda)", 0, &stack));
  GIVES(AQUIFER_ERROR_UNSUPPORTED, api->stack_sleep(stack, AQUIFER_KEEP_NOTHING, NULL, NULL));
  CHECK(strstr(api->last_error(), "handles=on") != NULL);
  OK(api->stack_release(stack));
}

static void streams(void) {
  aquifer_stream *made, *opened, *legacy, *legacy_again;
  void *handle;
  OK(api->stream_create(0, &made));
  OK(api->stream_handle(made, &handle));
  CHECK(handle != NULL);
  /* One more user of the same stream. */
  OK(api->stream_open(0, handle, &opened));
  CHECK(opened == made);
  OK(api->stream_close(opened));
  OK(api->stream_synchronize(made));
  OK(api->stream_close(made));
  GIVES(AQUIFER_ERROR_CLOSED, api->stream_synchronize(made));
  OK(api->stream_open(0, NULL, &legacy));
  OK(api->stream_handle(legacy, &handle));
  OK(api->stream_open(0, handle, &opened));
  CHECK(opened == legacy);
  OK(api->stream_close(opened));
  OK(api->stream_close(legacy));
  OK(api->stream_open(0, NULL, &legacy_again));
  OK(api->stream_synchronize(legacy_again));
  OK(api->stream_close(legacy_again));
}

static void blocks(void) {
  aquifer_stack *stack;
  aquifer_stream *stream, *other;
  OK(api->stack_create("pool(cuda, max=64MiB) | statistics", 0, &stack));
  OK(api->stream_create(0, &stream));
  OK(api->stream_create(0, &other));

  void *block = &block;
  OK(api->allocate(stack, 0, 0, stream, &block));
  CHECK(block == NULL);
  OK(api->deallocate(block, 0, stream));

  const size_t sizes[] = {1, 256, 257, 4096, 1 << 20, 3000001};
  const size_t alignments[] = {0, 1, 256, 4096};
  for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
    for (size_t alignment = 0; alignment < sizeof alignments / sizeof *alignments; alignment++) {
      for (int way = 0; way < 4; way++) {
        OK(api->allocate(stack, sizes[size], alignments[alignment], stream, &block));
        CHECK((uintptr_t)block % (alignments[alignment] > 256 ? alignments[alignment] : 256) == 0);
        aquifer_block_info info = {.struct_size = sizeof info};
        OK(api->block_info(block, &info));
        CHECK(info.requested_bytes == sizes[size] && info.bytes >= sizes[size]);
        CHECK(info.device == 0 && info.struct_size == sizeof info);
        CHECK(statistics_of(stack).live_blocks == 1);
        if (way == 0) OK(api->deallocate(block, sizes[size], stream));
        if (way == 1) OK(api->deallocate(block, 0, NULL));
        if (way == 2) OK(api->deallocate(block, sizes[size], other));
        if (way == 3) {
          OK(api->record_stream(block, other));
          OK(api->record_stream(block, other));
          OK(api->record_stream(block, stream));
          OK(api->block_info(block, &info));
          OK(api->deallocate(block, sizes[size], NULL));
        }
        GIVES(AQUIFER_ERROR_NOT_OURS, api->block_info(block, &info));
      }
    }
  }

  /* A program that was built with a smaller structure: what lies behind it is left alone. */
  aquifer_statistics small;
  memset(&small, 0x5a, sizeof small);
  small.struct_size = offsetof(aquifer_statistics, total_bytes);
  OK(api->statistics(stack, &small));
  CHECK(small.live_bytes == 0 && small.peak_bytes >= 3000001);
  CHECK(small.total_bytes == 0x5a5a5a5a5a5a5a5a);
  /* And one of a newer version, which has fields that this one does not know. */
  struct {
    aquifer_statistics known;
    uint64_t unknown;
  } large = {.known.struct_size = sizeof large, .unknown = 7};
  OK(api->statistics(stack, &large.known));
  CHECK(large.known.reserved_bytes > 0 && large.unknown == 7);

  /* Trimmed, the pool has nothing. */
  aquifer_statistics before = statistics_of(stack);
  CHECK(before.live_bytes == 0 && before.live_blocks == 0 && before.total_bytes > 0);
  CHECK(before.free_bytes == before.reserved_bytes && before.largest_free_bytes > 0);
  CHECK(before.peak_reserved_bytes >= before.reserved_bytes);
  size_t released = 0;
  OK(api->wait_and_trim(stack, 0, &released));
  CHECK(released == before.reserved_bytes);
  OK(api->wait_and_trim(stack, 0, NULL));
  CHECK(statistics_of(stack).reserved_bytes == 0);

  /* More than the pool's most. */
  GIVES(AQUIFER_ERROR_OUT_OF_MEMORY, api->allocate(stack, (size_t)65 << 20, 0, stream, &block));
  CHECK(block == NULL);

  /* Blocks outlive their stack and their stream. */
  void *second;
  OK(api->allocate(stack, 1000, 0, stream, &block));
  OK(api->allocate(stack, 2000, 0, stream, &second));
  OK(api->stream_close(stream));
  OK(api->deallocate(block, 1000, NULL));
  OK(api->stack_release(stack));
  aquifer_block_info info = {.struct_size = sizeof info};
  OK(api->block_info(second, &info));
  CHECK(info.requested_bytes == 2000);
  OK(api->deallocate(second, 2000, NULL));
  OK(api->stream_close(other));
}

static uint64_t free_memory(void) {
  uint64_t free_bytes = 0, total_bytes = 0;
  OK(api->memory_info(0, &free_bytes, &total_bytes));
  return free_bytes;
}

/* Many blocks outlive their stack. What it has goes back to the device with the last one. */
static void blocks_go_back(void) {
  enum { BLOCKS = 4000 };
  static void *blocks[BLOCKS];
  aquifer_stack *stack;
  aquifer_stream *stream;
  OK(api->stream_create(0, &stream));
  uint64_t before = free_memory();
  OK(api->stack_create("pool(cuda)", 0, &stack));
  for (int block = 0; block < BLOCKS; block++)
    OK(api->allocate(stack, 65536, 0, stream, &blocks[block]));
  CHECK(before - free_memory() >= (uint64_t)BLOCKS * 65536);
  OK(api->stack_release(stack));
  CHECK(free_memory() < before);
  for (int block = 0; block < BLOCKS; block++)
    OK(api->deallocate(blocks[block], block % 2 ? 65536 : 0, block % 3 ? stream : NULL));
  CHECK(free_memory() == before);
  OK(api->stream_close(stream));
}

static void blocks_by_handle(void) {
  aquifer_stack *stack;
  aquifer_stream *stream;
  void *handle, *block, *other;
  OK(api->stack_create("pool(cuda)", 0, &stack));
  OK(api->stream_create(0, &stream));
  OK(api->stream_handle(stream, &handle));
  OK(api->allocate_on(stack, 5000, 512, handle, &block));
  CHECK(block != NULL && (uintptr_t)block % 512 == 0);
  OK(api->allocate_on(stack, 5000, 0, NULL, &other));
  OK(api->deallocate_on(block, 5000, 0, NULL));
  OK(api->deallocate_on(other, 0, 0, handle));
  OK(api->allocate_on(stack, 0, 0, handle, &block));
  CHECK(block == NULL);
  OK(api->deallocate_on(NULL, 0, 0, handle));
  OK(api->stream_detach(0, handle));
  CHECK(statistics_of(stack).live_bytes == 0);
  OK(api->stack_release(stack));
}

static aquifer_statistics host_statistics(void) {
  aquifer_statistics statistics = {.struct_size = sizeof statistics};
  OK(api->host_statistics(&statistics));
  CHECK(statistics.free_bytes == statistics.reserved_bytes - statistics.live_bytes);
  CHECK(statistics.largest_free_bytes <= statistics.free_bytes);
  CHECK(statistics.peak_reserved_bytes >= statistics.reserved_bytes);
  return statistics;
}

/* Blocks of 24 MiB: allocated, freed and given back, by a call and by a threshold. */
static void host_limits(void) {
  const size_t bytes = (size_t)24 << 20;
  void *blocks[4];
  size_t released = 0;
  OK(api->host_trim(0, &released));
  CHECK(host_statistics().reserved_bytes == 0);
  OK(api->host_set_touch_threads(2));
  for (int which = 0; which < 4; which++) {
    OK(api->host_allocate(bytes, 0, 0, &blocks[which]));
    memset(blocks[which], which, bytes);
  }
  CHECK(host_statistics().live_bytes == 4 * bytes);
  OK(api->host_set_maximum(bytes));
  void *refused;
  GIVES(AQUIFER_ERROR_OUT_OF_MEMORY, api->host_allocate(20 * bytes, 0, 0, &refused));
  OK(api->host_set_maximum(SIZE_MAX));
  OK(api->host_deallocate(blocks[0]));
  OK(api->host_deallocate(blocks[1]));
  uint64_t before = host_statistics().reserved_bytes;
  CHECK(before >= 4 * bytes);
  OK(api->host_set_release_threshold(0));
  OK(api->host_deallocate(blocks[2]));
  OK(api->host_deallocate(blocks[3]));
  CHECK(host_statistics().reserved_bytes == 0);
  OK(api->host_set_release_threshold(SIZE_MAX));
  OK(api->host_set_touch_threads(0));
  OK(api->host_trim(0, &released));
  CHECK(released == 0);
}

static void host_memory(void) {
  unsigned char *memory;
  void *device_address;
  OK(api->host_allocate(0, 0, 0, (void **)&memory));
  CHECK(memory == NULL);
  OK(api->host_deallocate(memory));
  for (uint32_t flags = 0; flags <= AQUIFER_HOST_WRITE_COMBINED; flags++) {
    OK(api->host_allocate(10000, 0, flags, (void **)&memory));
    CHECK((uintptr_t)memory % 64 == 0);
    memset(memory, 0x5a, 10000);
    CHECK(memory[9999] == 0x5a);
    OK(api->host_device_pointer(memory + 17, &device_address));
    CHECK(device_address != NULL);
    OK(api->host_deallocate(memory));
  }
  OK(api->host_allocate(100, 4096, 0, (void **)&memory));
  CHECK((uintptr_t)memory % 4096 == 0);
  OK(api->host_deallocate(memory));

  void *own = aligned_alloc(4096, 8192);
  CHECK(own != NULL);
  OK(api->host_pin(own, 8192));
  OK(api->host_device_pointer(own, &device_address));
  OK(api->host_unpin(own));
  GIVES(AQUIFER_ERROR_NOT_OURS, api->host_unpin(own));
  free(own);
}

static void numbers(void) {
  uint64_t free_bytes = 0, total_bytes = 0;
  OK(api->memory_info(0, &free_bytes, &total_bytes));
  CHECK(total_bytes > 0 && free_bytes <= total_bytes);
}

static void logs(const char *folder) {
  char path[4096], line[512];
  snprintf(path, sizeof path, "%s/rows.csv", folder);
  aquifer_stack *stack;
  aquifer_stream *stream;
  void *before, *block, *handle;
  OK(api->stack_create("pool(cuda)", 0, &stack));
  OK(api->stream_create(0, &stream));
  OK(api->stream_handle(stream, &handle));
  OK(api->allocate(stack, 111, 0, stream, &before));
  OK(api->log_start(stack, path));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->log_start(stack, path));
  OK(api->deallocate(before, 111, stream));
  for (size_t bytes = 1000; bytes < 1003; bytes++) {
    OK(api->allocate(stack, bytes, 0, stream, &block));
    OK(api->deallocate(block, bytes, stream));
  }
  /* A capture that begins in the time of the log writes no row, then or later. */
  OK(api->capture_begin(stack, 5, 5, NULL, 0));
  OK(api->allocate(stack, 2000, 0, stream, &block));
  OK(api->deallocate(block, 2000, stream));
  OK(api->log_stop(stack));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->log_stop(stack));
  OK(api->allocate(stack, (size_t)50 << 20, 0, stream, &block));
  OK(api->deallocate(block, (size_t)50 << 20, stream));
  OK(api->capture_end(stack, 5, 5));
  OK(api->capture_release(stack, 5, 5));
  OK(api->allocate(stack, 2000, 0, stream, &block));
  OK(api->deallocate(block, 2000, stream));

  FILE *rows = fopen(path, "r");
  CHECK(rows != NULL);
  CHECK(fgets(line, sizeof line, rows) != NULL);
  CHECK(strcmp(line, "Thread,Time,Action,Pointer,Size,Stream\n") == 0);
  int allocations = 0, frees = 0;
  while (fgets(line, sizeof line, rows) != NULL) {
    char *action = strstr(line, ",allocate,");
    allocations += action != NULL;
    frees += strstr(line, ",free,") != NULL;
    CHECK(strstr(line, ",2000,") == NULL);
  }
  fclose(rows);
  CHECK(allocations == 3 && frees == 4);
  OK(api->stream_close(stream));
  OK(api->stack_release(stack));
}

static void captures(void) {
  aquifer_stack *stack;
  aquifer_stream *stream;
  void *outside, *inside, *freed, *again;
  OK(api->stack_create("pool(cuda) | statistics", 0, &stack));
  OK(api->stream_create(0, &stream));
  OK(api->allocate(stack, 4096, 0, stream, &outside));
  OK(api->capture_begin(stack, 1, 2, NULL, 0));
  GIVES(AQUIFER_ERROR_CAPTURE, api->capture_begin(stack, 1, 2, NULL, 0));
  OK(api->allocate(stack, 4096, 0, stream, &inside));
  OK(api->allocate(stack, 4096, 0, stream, &freed));
  OK(api->deallocate(freed, 4096, stream));
  /* The block of before goes back to the stack that it is of. */
  OK(api->deallocate(outside, 4096, stream));
  OK(api->capture_end(stack, 1, 2));
  /* What was freed in the capture is the graph's. */
  OK(api->allocate(stack, 4096, 0, stream, &again));
  CHECK(again != freed && again != inside);
  OK(api->deallocate(again, 4096, stream));
  /* A second capture of the key uses its pool again. */
  OK(api->capture_begin(stack, 1, 2, NULL, 0));
  OK(api->allocate(stack, 4096, 0, stream, &again));
  CHECK(again == freed);
  OK(api->deallocate(again, 4096, stream));
  OK(api->capture_end(stack, 1, 2));
  OK(api->capture_release(stack, 1, 2));
  /* A block of the graph is valid after it. */
  OK(api->deallocate(inside, 4096, stream));
  OK(api->stream_synchronize(stream));
  CHECK(statistics_of(stack).live_blocks == 0);
  OK(api->stream_close(stream));
  OK(api->stack_release(stack));
}

enum { BLOCKS = 64 };

struct captures {
  pthread_barrier_t barrier;
  aquifer_stack *stack;
};

static void *allocates_beside(void *argument) {
  struct captures *beside = argument;
  aquifer_stream *stream;
  void *blocks[BLOCKS];
  OK(api->stream_create(0, &stream));
  for (int block = 0; block < BLOCKS; block++) OK(api->allocate(beside->stack, 1 << 20, 0, stream, &blocks[block]));
  for (int block = 0; block < BLOCKS; block++) OK(api->deallocate(blocks[block], 1 << 20, stream));
  /* A capture of its own, at the same time. */
  OK(api->capture_begin(beside->stack, 4, 2, &stream, 1));
  OK(api->allocate(beside->stack, 1 << 20, 0, stream, &blocks[0]));
  OK(api->deallocate(blocks[0], 1 << 20, stream));
  pthread_barrier_wait(&beside->barrier);
  pthread_barrier_wait(&beside->barrier);
  OK(api->capture_end(beside->stack, 4, 2));
  OK(api->capture_release(beside->stack, 4, 2));
  OK(api->stream_close(stream));
  return NULL;
}

/* A capture takes the allocations of its streams alone. */
static void captures_of_streams(void) {
  struct captures state;
  aquifer_stream *streams[2];
  void *inside, *joined;
  size_t released;
  pthread_t thread;
  CHECK(pthread_barrier_init(&state.barrier, NULL, 2) == 0);
  OK(api->stack_create("pool(cuda)", 0, &state.stack));
  for (int stream = 0; stream < 2; stream++) OK(api->stream_create(0, &streams[stream]));
  OK(api->capture_begin(state.stack, 4, 1, streams, 2));
  OK(api->allocate(state.stack, 1 << 20, 0, streams[0], &inside));
  OK(api->allocate(state.stack, 1 << 20, 0, streams[1], &joined));
  CHECK(pthread_create(&thread, NULL, allocates_beside, &state) == 0);
  pthread_barrier_wait(&state.barrier);
  CHECK(statistics_of(state.stack).reserved_bytes >= (size_t)BLOCKS << 20);
  OK(api->wait_and_trim(state.stack, 0, &released));
  /* What the two captures have is left, and nothing of the 64 MiB. */
  CHECK(statistics_of(state.stack).reserved_bytes <= (size_t)BLOCKS / 2 << 20);
  pthread_barrier_wait(&state.barrier);
  OK(api->deallocate(joined, 1 << 20, streams[1]));
  OK(api->deallocate(inside, 1 << 20, streams[0]));
  OK(api->capture_end(state.stack, 4, 1));
  CHECK(pthread_join(thread, NULL) == 0);
  OK(api->capture_release(state.stack, 4, 1));
  CHECK(statistics_of(state.stack).live_bytes == 0);
  for (int stream = 0; stream < 2; stream++) OK(api->stream_close(streams[stream]));
  OK(api->stack_release(state.stack));
}

int main(int count, char **arguments) {
  CHECK(count == 2);
  api = aquifer_get_api(AQUIFER_ABI_MAJOR);
  CHECK(api != NULL);
  table();
  stacks();
  streams();
  blocks();
  blocks_go_back();
  blocks_by_handle();
  host_memory();
  host_limits();
  sleep_and_wake(arguments[1]);
  numbers();
  logs(arguments[1]);
  captures();
  captures_of_streams();
  aquifer_misuse misuse = {.struct_size = sizeof misuse};
  OK(api->misuse(&misuse));
  CHECK(misuse.unknown == 0 && misuse.freed_before == 0 && misuse.wrong_size == 0);
  CHECK(misuse.wrong_device == 0 && misuse.forked == 0);
  puts("all of it");
  return 0;
}
