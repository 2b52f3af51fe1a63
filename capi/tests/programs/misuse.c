/* Calls that no program should make: each gives a code and a message, and none takes the process down. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

static const aquifer_api *api;
static aquifer_stack *stack;
static aquifer_stream *stream;
static aquifer_misuse counted = {.struct_size = sizeof counted};

/* What was counted since the last call is these. */
static void counts(uint64_t unknown, uint64_t freed_before, uint64_t wrong_size) {
  aquifer_misuse now = {.struct_size = sizeof now};
  OK(api->misuse(&now));
  CHECK(now.unknown - counted.unknown == unknown);
  CHECK(now.freed_before - counted.freed_before == freed_before);
  CHECK(now.wrong_size - counted.wrong_size == wrong_size);
  CHECK(now.wrong_device == 0 && now.forked == 0);
  counted = now;
}

/* Handles that are none of the kind that is asked for: of what, and what the message says. */
static struct {
  const char *what;
  uintptr_t handle;
} foreign[8];

static void fill_foreign(void) {
  static int variable;
  foreign[0].what = "is null", foreign[0].handle = 0;
  foreign[1].what = "0x1 ", foreign[1].handle = 1;
  foreign[2].what = "is no", foreign[2].handle = (uintptr_t)&variable;
  foreign[3].what = "0xffffffffffffffff ", foreign[3].handle = UINTPTR_MAX;
  foreign[4].what = "is no", foreign[4].handle = (uintptr_t)fill_foreign;
  /* The mark of stacks, and of streams, with no number. */
  foreign[5].what = "0xaf51000000000000 ", foreign[5].handle = (uintptr_t)0xaf51000000000000;
  foreign[6].what = "0xaf52000000000000 ", foreign[6].handle = (uintptr_t)0xaf52000000000000;
  foreign[7].what = "is no", foreign[7].handle = 0;
}

static void wrong_stacks(void) {
  foreign[7].handle = (uintptr_t)stream;
  for (size_t which = 0; which < 8; which++) {
    aquifer_stack *wrong = (aquifer_stack *)foreign[which].handle;
    aquifer_statistics statistics = {.struct_size = sizeof statistics};
    void *block = &block;
    size_t released;
    GIVES(AQUIFER_ERROR_NOT_OURS, api->stack_retain(wrong));
    SAYS(foreign[which].what);
    SAYS("stack");
    GIVES(AQUIFER_ERROR_NOT_OURS, api->stack_release(wrong));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->allocate(wrong, 100, 0, stream, &block));
    CHECK(block == NULL);
    SAYS(foreign[which].what);
    block = &block;
    GIVES(AQUIFER_ERROR_NOT_OURS, api->allocate_on(wrong, 100, 0, NULL, &block));
    CHECK(block == NULL);
    GIVES(AQUIFER_ERROR_NOT_OURS, api->statistics(wrong, &statistics));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->trim(wrong, 0, &released));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->log_start(wrong, "nowhere.csv"));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->log_stop(wrong));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->capture_begin(wrong, 0, 0, NULL, 0));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->capture_end(wrong, 0, 0));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->capture_release(wrong, 0, 0));
  }
}

static void wrong_streams(void) {
  void *own;
  OK(api->allocate(stack, 100, 0, stream, &own));
  foreign[7].handle = (uintptr_t)stack;
  for (size_t which = 0; which < 8; which++) {
    aquifer_stream *wrong = (aquifer_stream *)foreign[which].handle;
    void *block = &block, *handle;
    GIVES(AQUIFER_ERROR_NOT_OURS, api->stream_handle(wrong, &handle));
    SAYS(foreign[which].what);
    SAYS("stream");
    GIVES(AQUIFER_ERROR_NOT_OURS, api->stream_close(wrong));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->stream_synchronize(wrong));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->allocate(stack, 100, 0, wrong, &block));
    CHECK(block == NULL);
    SAYS(foreign[which].what);
    GIVES(AQUIFER_ERROR_NOT_OURS, api->record_stream(own, wrong));
    if (wrong != NULL) GIVES(AQUIFER_ERROR_NOT_OURS, api->deallocate(own, 100, wrong));
  }
  /* Handles of the driver that no stream has. */
  void *handle = &handle, *block;
  aquifer_stream *opened;
  GIVES(AQUIFER_ERROR_DRIVER, api->stream_open(0, handle, &opened));
  GIVES(AQUIFER_ERROR_DRIVER, api->allocate_on(stack, 100, 0, handle, &block));
  GIVES(AQUIFER_ERROR_DRIVER, api->deallocate_on(own, 100, 0, handle));
  GIVES(AQUIFER_ERROR_DRIVER, api->stream_detach(0, handle));
  /* The per-thread default stream. */
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stream_open(0, (void *)2, &opened));
  /* The block was not freed by any of these. */
  aquifer_block_info info = {.struct_size = sizeof info};
  OK(api->block_info(own, &info));
  counts(0, 0, 0);
  OK(api->deallocate(own, 100, stream));
}

static void wrong_pointers(void) {
  int variable = 0;
  void *own, *outside = malloc(1000);
  char *inner;
  OK(api->allocate(stack, 100000, 0, stream, &own));
  inner = (char *)own;
  void *wrong[] = {&variable,  (void *)fill_foreign,       outside,           (void *)256,         (void *)1,
                   inner + 1,  inner + 16,         inner + 256,       inner + 99840,       (void *)UINTPTR_MAX,
                   (void *)-256, (void *)((uintptr_t)1 << 47), (void *)((uintptr_t)1 << 60), (void *)stack,
                   (void *)stream};
  const size_t number = sizeof wrong / sizeof *wrong;
  for (size_t which = 0; which < number; which++) {
    aquifer_block_info info = {.struct_size = sizeof info};
    if (wrong[which] != own) {
      GIVES(AQUIFER_ERROR_NOT_OURS, api->deallocate(wrong[which], 0, stream));
      SAYS("is no block of this library");
      GIVES(AQUIFER_ERROR_NOT_OURS, api->deallocate(wrong[which], 0, NULL));
      GIVES(AQUIFER_ERROR_NOT_OURS, api->deallocate_on(wrong[which], 0, 0, NULL));
      counts(3, 0, 0);
      GIVES(AQUIFER_ERROR_NOT_OURS, api->block_info(wrong[which], &info));
      GIVES(AQUIFER_ERROR_NOT_OURS, api->record_stream(wrong[which], stream));
      GIVES(AQUIFER_ERROR_NOT_OURS, api->host_unpin(wrong[which]));
      /* No free of a block. */
      counts(0, 0, 0);
      GIVES(AQUIFER_ERROR_NOT_OURS, api->host_deallocate(wrong[which]));
      counts(1, 0, 0);
    }
  }
  GIVES(AQUIFER_ERROR_NOT_OURS, api->host_unpin(NULL));
  GIVES(AQUIFER_ERROR_NOT_OURS, api->record_stream(NULL, stream));
  aquifer_block_info info = {.struct_size = sizeof info};
  GIVES(AQUIFER_ERROR_NOT_OURS, api->block_info(NULL, &info));
  OK(api->deallocate(own, 100000, stream));
  GIVES(AQUIFER_ERROR_FREED_BEFORE, api->deallocate(own, 100000, stream));
  SAYS("was freed before");
  GIVES(AQUIFER_ERROR_FREED_BEFORE, api->deallocate(own, 0, NULL));
  GIVES(AQUIFER_ERROR_FREED_BEFORE, api->deallocate_on(own, 0, 0, NULL));
  counts(0, 3, 0);
  GIVES(AQUIFER_ERROR_NOT_OURS, api->record_stream(own, stream));
  GIVES(AQUIFER_ERROR_NOT_OURS, api->block_info(own, &info));
  counts(0, 0, 0);
  free(outside);
}

static void wrong_sizes(void) {
  void *block;
  const size_t wrong[] = {1, 99, 101, 256, SIZE_MAX};
  for (size_t which = 0; which < sizeof wrong / sizeof *wrong; which++) {
    OK(api->allocate(stack, 100, 0, stream, &block));
    OK(api->deallocate(block, wrong[which], stream));
    counts(0, 0, 1);
    GIVES(AQUIFER_ERROR_FREED_BEFORE, api->deallocate(block, 100, stream));
    counts(0, 1, 0);
  }
  const size_t huge[] = {SIZE_MAX, SIZE_MAX - 255, SIZE_MAX / 2, (size_t)1 << 62, (size_t)1 << 50};
  for (size_t which = 0; which < sizeof huge / sizeof *huge; which++) {
    for (size_t alignment = 0; alignment < 2; alignment++) {
      block = &block;
      aquifer_status status = api->allocate(stack, huge[which], alignment * 256, stream, &block);
      CHECK(status == AQUIFER_ERROR_OUT_OF_MEMORY || status == AQUIFER_ERROR_INVALID_ARGUMENT);
      CHECK(block == NULL && api->last_error()[0] != '\0');
      status = api->host_allocate(huge[which], alignment * 256, 0, &block);
      CHECK(status == AQUIFER_ERROR_OUT_OF_MEMORY || status == AQUIFER_ERROR_INVALID_ARGUMENT);
      CHECK(block == NULL);
    }
  }
  const size_t alignments[] = {3, 255, 257, 768, SIZE_MAX, SIZE_MAX / 2};
  for (size_t which = 0; which < sizeof alignments / sizeof *alignments; which++) {
    GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->allocate(stack, 100, alignments[which], stream, &block));
    SAYS("power of two");
    CHECK(block == NULL);
    GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->allocate_on(stack, 100, alignments[which], NULL, &block));
    GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->host_allocate(100, alignments[which], 0, &block));
    SAYS("power of two");
  }
  const size_t high[] = {(size_t)1 << 62, (size_t)1 << 63};
  for (size_t which = 0; which < 2; which++) {
    aquifer_status status = api->allocate(stack, 100, high[which], stream, &block);
    CHECK(status == AQUIFER_ERROR_OUT_OF_MEMORY || status == AQUIFER_ERROR_INVALID_ARGUMENT ||
          status == AQUIFER_ERROR_UNSUPPORTED);
    CHECK(block == NULL && api->last_error()[0] != '\0');
    status = api->host_allocate(100, high[which], 0, &block);
    CHECK(status == AQUIFER_ERROR_OUT_OF_MEMORY || status == AQUIFER_ERROR_INVALID_ARGUMENT ||
          status == AQUIFER_ERROR_UNSUPPORTED);
    CHECK(block == NULL);
  }
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->host_allocate(100, 0, 2, &block));
  SAYS("0x2");
  counts(0, 0, 0);
}

static void no_places(void) {
  uint64_t number;
  void *block;
  OK(api->allocate(stack, 100, 0, stream, &block));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_create("pool(cuda)", 0, NULL));
  SAYS("is null");
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_default(0, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stream_open(0, NULL, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stream_create(0, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stream_handle(stream, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->allocate(stack, 100, 0, stream, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->allocate(stack, 100, 512, stream, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->allocate_on(stack, 100, 0, NULL, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->block_info(block, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->host_allocate(100, 0, 0, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->host_pin(NULL, 100));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->host_device_pointer(block, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->host_device_pointer(NULL, &block));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->statistics(stack, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->memory_info(0, NULL, &number));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->memory_info(0, &number, NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->misuse(NULL));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->log_start(stack, NULL));

  /* Structures that do not say their size, or say one that is none. */
  aquifer_statistics statistics = {.struct_size = 0, .live_bytes = 77};
  aquifer_misuse misuse = {.struct_size = 8, .unknown = 77};
  aquifer_block_info info = {.struct_size = 1, .bytes = 77};
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->statistics(stack, &statistics));
  SAYS("set struct_size to its sizeof");
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->misuse(&misuse));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->block_info(block, &info));
  CHECK(statistics.live_bytes == 77 && misuse.unknown == 77 && info.bytes == 77);
  /* A size that is too large is one of a later version. */
  statistics.struct_size = SIZE_MAX;
  OK(api->statistics(stack, &statistics));
  CHECK(statistics.live_bytes >= 100 && statistics.struct_size == SIZE_MAX);
  info.struct_size = SIZE_MAX;
  OK(api->block_info(block, &info));
  CHECK(info.requested_bytes == 100 && info.device == 0);
  OK(api->deallocate(block, 100, stream));
  counts(0, 0, 0);
}

static void wrong_texts(void) {
  static const struct {
    const char *text;
    const char *says;
  } texts[] = {
      {"", "column 1"},
      {"lake(cuda)", "column 1"},
      {"pool(cuda", "column 5"},
      {"pool(cuda) |", "column 13"},
      {"pool(cuda) | lake", "column 14"},
      {"pool(cuda, most=1)", "column 12"},
      {"pool(cuda, max=much)", "column 16"},
      {"pool(cuda))", "column 11"},
      {"statistics", "column 1"},
      {"pool(cuda, max=80%, max=80%)", "column 21"},
  };
  aquifer_stack *made = NULL;
  for (size_t which = 0; which < sizeof texts / sizeof *texts; which++) {
    GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_create(texts[which].text, 0, &made));
    SAYS(texts[which].says);
  }
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_create("pool(\xff)", 0, &made));
  SAYS("UTF-8");
  setenv("AQUIFER_STACK", "lake", 1);
  aquifer_status status = api->stack_create(NULL, 0, &made);
  CHECK(status == AQUIFER_ERROR_ENVIRONMENT);
  SAYS("AQUIFER_STACK: column 1");
  unsetenv("AQUIFER_STACK");
  CHECK(made == NULL);
}

static void wrong_devices(void) {
  aquifer_stack *made;
  aquifer_stream *opened;
  uint64_t free_bytes, total_bytes;
  const int32_t devices[] = {-1, 64, INT32_MAX, INT32_MIN};
  for (size_t which = 0; which < 4; which++) {
    aquifer_status code = devices[which] < 0 ? AQUIFER_ERROR_INVALID_ARGUMENT : AQUIFER_ERROR_NO_DEVICE;
    GIVES(code, api->stack_create("pool(cuda)", devices[which], &made));
    GIVES(code, api->stack_default(devices[which], &made));
    GIVES(code, api->stream_create(devices[which], &opened));
    GIVES(code, api->stream_open(devices[which], NULL, &opened));
    GIVES(code, api->stream_detach(devices[which], NULL));
    GIVES(code, api->memory_info(devices[which], &free_bytes, &total_bytes));
    GIVES(code, api->deallocate_on(stack, 0, devices[which], NULL));
  }
  counts(0, 0, 0);
}

static void closed(void) {
  aquifer_stack *gone;
  aquifer_stream *shut, *live;
  void *block, *handle;
  aquifer_statistics statistics = {.struct_size = sizeof statistics};
  OK(api->stack_create("pool(cuda)", 0, &gone));
  OK(api->stream_create(0, &shut));
  OK(api->stream_create(0, &live));
  OK(api->allocate(gone, 100, 0, shut, &block));
  OK(api->stack_release(gone));
  OK(api->stream_close(shut));
  GIVES(AQUIFER_ERROR_CLOSED, api->stack_release(gone));
  SAYS("released");
  GIVES(AQUIFER_ERROR_CLOSED, api->stack_retain(gone));
  GIVES(AQUIFER_ERROR_CLOSED, api->statistics(gone, &statistics));
  GIVES(AQUIFER_ERROR_CLOSED, api->trim(gone, 0, NULL));
  GIVES(AQUIFER_ERROR_CLOSED, api->wait_and_trim(gone, 0, NULL));
  GIVES(AQUIFER_ERROR_CLOSED, api->log_start(gone, "nowhere.csv"));
  GIVES(AQUIFER_ERROR_CLOSED, api->log_stop(gone));
  GIVES(AQUIFER_ERROR_CLOSED, api->capture_begin(gone, 0, 0, NULL, 0));
  GIVES(AQUIFER_ERROR_CLOSED, api->allocate_on(gone, 100, 0, NULL, &handle));
  GIVES(AQUIFER_ERROR_CLOSED, api->allocate(gone, 100, 0, live, &handle));
  GIVES(AQUIFER_ERROR_CLOSED, api->allocate(stack, 100, 0, shut, &handle));
  CHECK(handle == NULL);
  SAYS("closed");
  GIVES(AQUIFER_ERROR_CLOSED, api->stream_close(shut));
  GIVES(AQUIFER_ERROR_CLOSED, api->stream_synchronize(shut));
  GIVES(AQUIFER_ERROR_CLOSED, api->stream_handle(shut, &handle));
  GIVES(AQUIFER_ERROR_CLOSED, api->record_stream(block, shut));
  /* Not freed, so that the program may free it rightly. */
  GIVES(AQUIFER_ERROR_CLOSED, api->deallocate(block, 100, shut));
  OK(api->deallocate(block, 100, live));
  GIVES(AQUIFER_ERROR_FREED_BEFORE, api->deallocate(block, 100, live));
  OK(api->stream_close(live));
  counts(0, 1, 0);

  /* The process's own stack stays, however often it is released. */
  aquifer_stack *own, *again;
  OK(api->stack_default(0, &own));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_release(own));
  OK(api->stack_retain(own));
  OK(api->stack_release(own));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_release(own));
  OK(api->stack_default(0, &again));
  CHECK(own == again);
  OK(api->statistics(own, &statistics));
}

static void wrong_host_limits(void) {
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->host_set_maximum(0));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->host_set_maximum(4097));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->host_statistics(NULL));
  OK(api->host_trim(0, NULL));
}

static void wrong_host_memory(void) {
  void *memory, *address;
  int variable;
  OK(api->host_allocate(100, 0, 0, &memory));
  OK(api->host_deallocate(memory));
  GIVES(AQUIFER_ERROR_NOT_OURS, api->host_deallocate(memory));
  counts(1, 0, 0);
  aquifer_status status = api->host_device_pointer(&variable, &address);
  CHECK(status != AQUIFER_OK && status != AQUIFER_ERROR_PANIC && api->last_error()[0] != '\0');
  memory = aligned_alloc(4096, 8192);
  const size_t sizes[] = {0, SIZE_MAX, SIZE_MAX / 2 + 1};
  for (size_t which = 0; which < 3; which++) {
    status = api->host_pin(memory, sizes[which]);
    CHECK(status != AQUIFER_OK && status != AQUIFER_ERROR_PANIC && api->last_error()[0] != '\0');
  }
  OK(api->host_pin(memory, 8192));
  status = api->host_pin(memory, 8192);
  CHECK(status != AQUIFER_OK && status != AQUIFER_ERROR_PANIC && api->last_error()[0] != '\0');
  GIVES(AQUIFER_ERROR_NOT_OURS, api->host_unpin((char *)memory + 4096));
  OK(api->host_unpin(memory));
  GIVES(AQUIFER_ERROR_NOT_OURS, api->host_unpin(memory));
  free(memory);
}

static void wrong_logs_and_captures(void) {
  GIVES(AQUIFER_ERROR_IO, api->log_start(stack, "/no/such/folder/rows.csv"));
  SAYS("/no/such/folder/rows.csv");
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->log_stop(stack));
  aquifer_status status = api->log_start(stack, "");
  CHECK(status == AQUIFER_ERROR_IO || status == AQUIFER_ERROR_INVALID_ARGUMENT);
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_end(stack, 1, 1));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_release(stack, 1, 1));
  OK(api->capture_begin(stack, 1, 1, NULL, 0));
  GIVES(AQUIFER_ERROR_CAPTURE, api->capture_begin(stack, 2, 1, NULL, 0));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_end(stack, 1, 2));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_release(stack, 1, 1));
  OK(api->capture_end(stack, 1, 1));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_end(stack, 1, 1));
  OK(api->capture_release(stack, 1, 1));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_release(stack, 1, 1));
  SAYS("release it once");

  aquifer_stream *own, *shut, *named[2] = {NULL, (aquifer_stream *)stack};
  OK(api->stream_create(0, &own));
  OK(api->stream_create(0, &shut));
  OK(api->stream_close(shut));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_begin(stack, 1, 1, NULL, 1));
  SAYS("is null");
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_begin(stack, 1, 1, named, 0));
  SAYS("give null for all");
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_begin(stack, 1, 1, named, SIZE_MAX));
  SAYS("the number of those in the array");
  GIVES(AQUIFER_ERROR_NOT_OURS, api->capture_begin(stack, 1, 1, named, 1));
  SAYS("a stream is null");
  GIVES(AQUIFER_ERROR_NOT_OURS, api->capture_begin(stack, 1, 1, &named[1], 1));
  SAYS("is no stream of this library");
  GIVES(AQUIFER_ERROR_CLOSED, api->capture_begin(stack, 1, 1, &shut, 1));
  SAYS("closed");
  OK(api->capture_begin(stack, 1, 1, &own, 1));
  GIVES(AQUIFER_ERROR_CAPTURE, api->capture_begin(stack, 2, 1, &own, 1));
  SAYS("capture on another stream");
  GIVES(AQUIFER_ERROR_CAPTURE, api->capture_begin(stack, 1, 1, &stream, 1));
  SAYS("a key of its own");
  GIVES(AQUIFER_ERROR_CAPTURE, api->capture_begin(stack, 2, 1, NULL, 0));
  SAYS("name streams");
  GIVES(AQUIFER_ERROR_CAPTURE, api->stream_close(own));
  SAYS("call capture_end first");
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_release(stack, 1, 1));
  SAYS("end it first");
  /* A second capture beside it, of another stream. */
  OK(api->capture_begin(stack, 2, 1, &stream, 1));
  OK(api->capture_end(stack, 1, 1));
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->capture_end(stack, 1, 1));
  SAYS("begin it first");
  OK(api->capture_end(stack, 2, 1));
  OK(api->capture_release(stack, 1, 1));
  OK(api->capture_release(stack, 2, 1));
  OK(api->stream_close(own));
}

/* All of these in the child, where another thread of the parent may have held any lock. */
static void in_child(void *block, void *host) {
  aquifer_stack *made;
  aquifer_stream *opened;
  void *place;
  uint64_t number;
  size_t released;
  aquifer_statistics statistics = {.struct_size = sizeof statistics};
  aquifer_block_info info = {.struct_size = sizeof info};
  aquifer_cuquantum_handler handler;
#define FORKED(call) GIVES(AQUIFER_ERROR_FORKED, call)
  FORKED(api->stack_create("pool(cuda)", 0, &made));
  SAYS("fork");
  FORKED(api->stack_default(0, &made));
  FORKED(api->stack_retain(stack));
  FORKED(api->stack_release(stack));
  FORKED(api->stream_open(0, NULL, &opened));
  FORKED(api->stream_create(0, &opened));
  FORKED(api->stream_handle(stream, &place));
  FORKED(api->stream_close(stream));
  FORKED(api->stream_synchronize(stream));
  FORKED(api->allocate(stack, 100, 0, stream, &place));
  FORKED(api->allocate(stack, 100, 512, stream, &place));
  FORKED(api->allocate_on(stack, 100, 0, NULL, &place));
  FORKED(api->deallocate(block, 100, stream));
  FORKED(api->deallocate(block, 0, NULL));
  FORKED(api->deallocate_on(block, 100, 0, NULL));
  FORKED(api->host_deallocate(host));
  FORKED(api->stream_detach(0, NULL));
  FORKED(api->record_stream(block, stream));
  FORKED(api->block_info(block, &info));
  FORKED(api->host_allocate(100, 0, 0, &place));
  FORKED(api->host_pin(place, 100));
  FORKED(api->host_unpin(place));
  FORKED(api->host_device_pointer(host, &place));
  FORKED(api->statistics(stack, &statistics));
  FORKED(api->memory_info(0, &number, &number));
  FORKED(api->trim(stack, 0, &released));
  FORKED(api->wait_and_trim(stack, 0, &released));
  FORKED(api->stack_sleep(stack, AQUIFER_KEEP_NOTHING, NULL, NULL));
  FORKED(api->stack_wake(stack));
  FORKED(api->host_trim(0, &released));
  FORKED(api->host_statistics(&statistics));
  FORKED(api->host_set_maximum(4096));
  FORKED(api->host_set_release_threshold(0));
  FORKED(api->host_set_touch_threads(8));
  FORKED(api->log_start(stack, "nowhere.csv"));
  FORKED(api->log_stop(stack));
  FORKED(api->capture_begin(stack, 1, 1, NULL, 0));
  FORKED(api->capture_end(stack, 1, 1));
  FORKED(api->capture_release(stack, 1, 1));
  FORKED(aquifer_cuquantum_device_handler(0, &handler));
  aquifer_torch_free(block, 100, 0, NULL);
  aquifer_cupy_free(NULL, block, 0);
  CHECK(aquifer_torch_alloc_nothrow(100, 0, NULL) == NULL);
  aquifer_torch_reset();
  aquifer_torch_memory_fraction(0.5, 0);
  CHECK(aquifer_torch_base_alloc(block, &released) == block);
  aquifer_torch_record_stream(block, NULL);
  aquifer_torch_begin_allocate_to_pool(0, (aquifer_torch_pool_id){1, 1}, NULL);
  aquifer_torch_end_allocate_to_pool(0, (aquifer_torch_pool_id){1, 1});
  aquifer_torch_release_pool(0, (aquifer_torch_pool_id){1, 1});
  aquifer_misuse misuse = {.struct_size = sizeof misuse};
  OK(api->misuse(&misuse));
  CHECK(misuse.forked == 6);
  CHECK(strchr(api->version(), '.') != NULL);
}

static void forked(void) {
  void *block, *host;
  aquifer_stack *own;
  OK(api->stack_default(0, &own));
  OK(api->allocate(stack, 100, 0, stream, &block));
  OK(api->host_allocate(100, 0, 0, &host));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    /* A child that hangs is one that failed. */
    alarm(20);
    in_child(block, host);
    /* As a program ends that does not know of the fork: by the destructors of its thread, too. */
#ifdef __SANITIZE_ADDRESS__
    /* But for the search for leaks, which takes for one what the parent's other threads have. */
    _exit(0);
#else
    exit(0);
#endif
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  /* The parent's are as they were. */
  OK(api->deallocate(block, 100, stream));
  OK(api->host_deallocate(host));
  counts(0, 0, 0);
}

static atomic_bool is_over;

/* Calls that take each lock of the library. */
static void *hold_locks(void *argument) {
  while (!is_over) {
    aquifer_stream *own_stream;
    aquifer_stack *own_stack;
    void *block;
    OK(api->stream_create(0, &own_stream));
    OK(api->stack_create("pool(cuda)", 0, &own_stack));
    OK(api->allocate(own_stack, 1000, 0, own_stream, &block));
    OK(api->record_stream(block, stream));
    OK(api->stream_close(own_stream));
    OK(api->stack_release(own_stack));
    OK(api->deallocate(block, 0, NULL));
    OK(api->host_allocate(100, 0, 0, &block));
    OK(api->host_deallocate(block));
    block = aquifer_torch_alloc_nothrow(100, 0, NULL);
    aquifer_torch_free(block, 100, 0, NULL);
    GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_create("lake", 0, &own_stack));
  }
  return argument;
}

static void forked_while_threads_hold_locks(void) {
  pthread_t threads[4];
  for (int thread = 0; thread < 4; thread++)
    CHECK(pthread_create(&threads[thread], NULL, hold_locks, NULL) == 0);
  for (int round = 0; round < 50; round++) {
    void *block;
    OK(api->allocate(stack, 1000, 0, stream, &block));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(20);
      aquifer_stack *own;
      FORKED(api->deallocate(block, 1000, stream));
      FORKED(api->allocate(stack, 1000, 0, stream, &block));
      FORKED(api->stack_default(0, &own));
      FORKED(api->stack_release(stack));
      _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(api->deallocate(block, 1000, stream));
  }
  is_over = true;
  for (int thread = 0; thread < 4; thread++) CHECK(pthread_join(threads[thread], NULL) == 0);
}

int main(void) {
  api = aquifer_get_api(AQUIFER_ABI_MAJOR);
  CHECK(api != NULL);
  CHECK(aquifer_get_api(AQUIFER_ABI_MAJOR + 1) == NULL && aquifer_get_api(0) == NULL);
  CHECK(aquifer_get_api(UINT32_MAX) == NULL);
  OK(api->stack_create("pool(cuda) | statistics", 0, &stack));
  OK(api->stream_create(0, &stream));
  fill_foreign();
  wrong_stacks();
  wrong_streams();
  wrong_pointers();
  wrong_sizes();
  no_places();
  wrong_texts();
  wrong_devices();
  closed();
  wrong_host_limits();
  wrong_host_memory();
  wrong_logs_and_captures();
  forked();
  forked_while_threads_hold_locks();
  aquifer_statistics statistics = {.struct_size = sizeof statistics};
  OK(api->statistics(stack, &statistics));
  CHECK(statistics.live_blocks == 0 && statistics.live_bytes == 0);
  OK(api->stream_close(stream));
  OK(api->stack_release(stack));
  puts("all of it");
  return 0;
}
