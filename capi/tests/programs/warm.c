/* Calls that a thread makes again and again, and what makes them take another way: on the simulated device, by a driver
 * that is a stand-in, and on a GPU. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

static const aquifer_api *api;
static const char *log_path;

static aquifer_stack *make_stack(const char *text) {
  aquifer_stack *stack;
  OK(api->stack_create(text, 0, &stack));
  return stack;
}

static aquifer_stream *make_stream(void) {
  aquifer_stream *stream;
  OK(api->stream_create(0, &stream));
  return stream;
}

static void *allocate(aquifer_stack *stack, size_t bytes, aquifer_stream *stream) {
  void *block = NULL;
  OK(api->allocate(stack, bytes, 0, stream, &block));
  CHECK(block != NULL);
  return block;
}

static aquifer_statistics statistics_of(aquifer_stack *stack) {
  aquifer_statistics statistics = {.struct_size = sizeof statistics};
  OK(api->statistics(stack, &statistics));
  return statistics;
}

static uint64_t requested(void *block) {
  aquifer_block_info info = {.struct_size = sizeof info};
  return api->block_info(block, &info) == AQUIFER_OK ? info.requested_bytes : 0;
}

static aquifer_misuse misuse(void) {
  aquifer_misuse misuse = {.struct_size = sizeof misuse};
  OK(api->misuse(&misuse));
  return misuse;
}

static int rows_of_log(const char *action) {
  FILE *log = fopen(log_path, "r");
  char line[256];
  int rows = 0;
  CHECK(log != NULL);
  while (fgets(line, sizeof line, log)) rows += strstr(line, action) != NULL;
  fclose(log);
  return rows;
}

/* Pairs until they are warm, and what is wrong in one after them. */
static void pairs(void) {
  aquifer_stack *stack = make_stack("pool(cuda)");
  aquifer_stream *stream = make_stream();
  void *block = NULL;
  for (int round = 0; round < 100; round++) {
    block = allocate(stack, 1000, stream);
    CHECK(requested(block) == 1000);
    OK(api->deallocate(block, round % 3 ? 1000 : 0, round % 2 ? stream : NULL));
    GIVES(AQUIFER_ERROR_FREED_BEFORE, api->deallocate(block, 1000, stream));
    CHECK(requested(block) == 0);
    /* Another size of the same class, and another class. */
    block = allocate(stack, 1001, stream);
    void *other = allocate(stack, 5000, stream);
    CHECK(requested(block) == 1001 && requested(other) == 5000);
    aquifer_misuse before = misuse();
    OK(api->deallocate(block, 1000, stream));
    CHECK(misuse().wrong_size == before.wrong_size + 1);
    OK(api->deallocate(other, 5000, stream));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->deallocate((char *)other + 1, 0, stream));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->allocate(stack, 1000, 0, NULL, &block));
    GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->allocate(stack, 1000, 0, stream, NULL));
    OK(api->allocate(stack, 0, 0, stream, &block));
    CHECK(block == NULL);
    if (round % 10 == 9) OK(api->wait_and_trim(stack, 0, NULL));
  }
  CHECK(statistics_of(stack).live_bytes == 0);
  OK(api->stream_close(stream));
  GIVES(AQUIFER_ERROR_CLOSED, api->allocate(stack, 1000, 0, stream, &block));
  OK(api->stack_release(stack));
}

/* More pairs of a stack and a stream than a thread remembers, in turn, and blocks that two streams use. */
static void many(void) {
  enum { STACKS = 3, STREAMS = 20, ROUNDS = 30 };
  aquifer_stack *stacks[STACKS] = {make_stack("pool(cuda)"), make_stack("pool(cuda) | statistics"), make_stack("async")};
  aquifer_stream *streams[STREAMS];
  void *blocks[STACKS][STREAMS];
  for (int stream = 0; stream < STREAMS; stream++) streams[stream] = make_stream();
  for (int round = 0; round < ROUNDS; round++) {
    int used = round % 2 ? STREAMS : 2;
    for (int stack = 0; stack < STACKS; stack++)
      for (int stream = 0; stream < used; stream++) blocks[stack][stream] = allocate(stacks[stack], 3000 + stream, streams[stream]);
    for (int stack = 0; stack < STACKS; stack++) {
      for (int stream = 0; stream < used; stream++) {
        aquifer_stream *on = streams[(stream + round / 2) % used];
        CHECK(requested(blocks[stack][stream]) == (uint64_t)(3000 + stream));
        if (on == streams[stream]) {
          OK(api->deallocate(blocks[stack][stream], 3000 + stream, on));
        } else {
          OK(api->record_stream(blocks[stack][stream], on));
          OK(api->deallocate(blocks[stack][stream], 3000 + stream, NULL));
        }
      }
    }
    for (int stack = 0; stack < 2; stack++) CHECK(statistics_of(stacks[stack]).live_bytes == 0);
  }
  for (int stream = 0; stream < STREAMS; stream++) OK(api->stream_close(streams[stream]));
  for (int stack = 0; stack < STACKS; stack++) OK(api->stack_release(stacks[stack]));
}

/* By a driver's handle, of a stream that the program closes and of the next one. */
static void handles(void) {
  aquifer_stack *stack = make_stack("pool(cuda)");
  for (int round = 0; round < 20; round++) {
    aquifer_stream *stream = make_stream();
    void *handle, *block;
    OK(api->stream_handle(stream, &handle));
    for (int pair = 0; pair < 10; pair++) {
      OK(api->allocate_on(stack, 1000, 0, handle, &block));
      if (pair % 3 == 1) OK(api->deallocate(block, 1000, stream));
      else OK(api->deallocate_on(block, 1000, 0, handle));
      GIVES(AQUIFER_ERROR_FREED_BEFORE, api->deallocate_on(block, 1000, 0, handle));
      OK(api->allocate_on(stack, 1000, 0, NULL, &block));
      OK(api->deallocate_on(block, 1000, 0, NULL));
    }
    OK(api->stream_close(stream));
  }
  CHECK(statistics_of(stack).live_bytes == 0);
  OK(api->stack_release(stack));
}

/* The next call after a change of the stack sees it. */
static void changes(void) {
  aquifer_stack *stack = make_stack("pool(cuda)");
  aquifer_stream *stream = make_stream();
  void *block = NULL, *of_capture;
  for (int pair = 0; pair < 10; pair++) OK(api->deallocate(allocate(stack, 1000, stream), 1000, stream));

  OK(api->log_start(stack, log_path));
  block = allocate(stack, 1000, stream);
  OK(api->deallocate(block, 1000, stream));
  OK(api->log_stop(stack));
  for (int pair = 0; pair < 10; pair++) OK(api->deallocate(allocate(stack, 1000, stream), 1000, stream));
  CHECK(rows_of_log("allocate") + rows_of_log("free") == 2);

  /* What is allocated for a graph is not handed out besides, though the graph's owner has freed it. */
  OK(api->capture_begin(stack, 1, 1, NULL, 0));
  of_capture = allocate(stack, 1000, stream);
  OK(api->deallocate(of_capture, 1000, stream));
  OK(api->capture_end(stack, 1, 1));
  for (int pair = 0; pair < 10; pair++) {
    block = allocate(stack, 1000, stream);
    CHECK(block != of_capture);
    OK(api->deallocate(block, 1000, stream));
  }
  OK(api->capture_release(stack, 1, 1));

  /* So it is on the one stream that a capture names, and the other one stays warm. */
  aquifer_stream *other = make_stream();
  for (int pair = 0; pair < 10; pair++) OK(api->deallocate(allocate(stack, 1000, other), 1000, other));
  OK(api->capture_begin(stack, 2, 1, &other, 1));
  of_capture = allocate(stack, 1000, other);
  OK(api->deallocate(of_capture, 1000, other));
  for (int pair = 0; pair < 10; pair++) {
    CHECK(allocate(stack, 1000, other) == of_capture);
    OK(api->deallocate(of_capture, 1000, other));
    block = allocate(stack, 1000, stream);
    CHECK(block != of_capture);
    OK(api->deallocate(block, 1000, stream));
  }
  OK(api->capture_end(stack, 2, 1));
  block = allocate(stack, 1000, other);
  CHECK(block != of_capture);
  OK(api->deallocate(block, 1000, other));
  OK(api->capture_release(stack, 2, 1));
  OK(api->stream_close(other));

  /* A block outlives the stack that the thread remembers. */
  block = allocate(stack, 1000, stream);
  OK(api->stack_release(stack));
  GIVES(AQUIFER_ERROR_CLOSED, api->allocate(stack, 1000, 0, stream, &of_capture));
  OK(api->deallocate(block, 1000, stream));
  GIVES(AQUIFER_ERROR_FREED_BEFORE, api->deallocate(block, 1000, stream));
  OK(api->stream_close(stream));
}

/* What is refused at first is refused when it is warm, whatever numbers the handles have. */
static void refusals(void) {
  aquifer_stream *stream = make_stream();
  void *handle, *block, *other;
  OK(api->stream_handle(stream, &handle));
  for (int round = 0; round < 20; round++) {
    aquifer_stack *stack = make_stack("pool(cuda)");
    block = allocate(stack, 1000, stream);
    OK(api->capture_begin(stack, 1, 1, NULL, 0));
    OK(api->capture_end(stack, 1, 1));
    /* The thread remembers the route of a free, and not its stack. */
    OK(api->deallocate(block, 1000, stream));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->allocate(NULL, 1000, 0, stream, &other));
    GIVES(AQUIFER_ERROR_NOT_OURS, api->allocate_on(NULL, 1000, 0, handle, &other));
    for (int pair = 0; pair < 3; pair++) {
      OK(api->allocate_on(stack, 1000, 0, NULL, &block));
      GIVES(AQUIFER_ERROR_NO_DEVICE, api->deallocate_on(block, 1000, 64, NULL));
      OK(api->deallocate_on(block, 1000, 0, NULL));
    }
    OK(api->stack_release(stack));
  }
  OK(api->stream_close(stream));
}

/* A call that fails has asked once. */
static void failures(void) {
  char text[4200];
  snprintf(text, sizeof text, "pool(cuda, max=4MiB) | logging(\"%s\")", log_path);
  aquifer_stack *stack = make_stack(text);
  aquifer_stream *stream = make_stream();
  void *block = (void *)stack;
  for (int pair = 0; pair < 3; pair++) OK(api->deallocate(allocate(stack, 1000, stream), 1000, stream));
  GIVES(AQUIFER_ERROR_OUT_OF_MEMORY, api->allocate(stack, 8 << 20, 0, stream, &block));
  CHECK(block == NULL);
  SAYS("8388608 bytes");
  OK(api->deallocate(allocate(stack, 1000, stream), 1000, stream));
  OK(api->stream_close(stream));
  OK(api->stack_release(stack));
  CHECK(rows_of_log("allocate failure") == 1);
}

struct sleeper {
  pthread_barrier_t barrier;
  aquifer_stack *stack;
  aquifer_stream *stream;
};

static void *sleeps(void *argument) {
  struct sleeper *sleeper = argument;
  for (int pair = 0; pair < 3; pair++)
    OK(api->deallocate(allocate(sleeper->stack, 1000, sleeper->stream), 1000, sleeper->stream));
  pthread_barrier_wait(&sleeper->barrier);
  pthread_barrier_wait(&sleeper->barrier);
  return NULL;
}

/* A thread that has used a stack and sleeps keeps neither its memory nor its log. */
static void threads_that_sleep(void) {
  enum { BLOCKS = 64 };
  struct sleeper sleeper = {.stream = make_stream()};
  uint64_t before, after, total;
  void *blocks[BLOCKS];
  pthread_t thread;
  OK(api->memory_info(0, &before, &total));
  sleeper.stack = make_stack("pool(cuda)");
  OK(api->log_start(sleeper.stack, log_path));
  CHECK(pthread_barrier_init(&sleeper.barrier, NULL, 2) == 0);
  CHECK(pthread_create(&thread, NULL, sleeps, &sleeper) == 0);
  pthread_barrier_wait(&sleeper.barrier);
  OK(api->log_stop(sleeper.stack));
  OK(api->log_start(sleeper.stack, log_path));
  OK(api->log_stop(sleeper.stack));
  pthread_barrier_wait(&sleeper.barrier);
  CHECK(pthread_join(thread, NULL) == 0);

  CHECK(pthread_create(&thread, NULL, sleeps, &sleeper) == 0);
  pthread_barrier_wait(&sleeper.barrier);
  for (int block = 0; block < BLOCKS; block++) blocks[block] = allocate(sleeper.stack, 1 << 20, sleeper.stream);
  OK(api->stack_release(sleeper.stack));
  for (int block = 0; block < BLOCKS; block++) OK(api->deallocate(blocks[block], 1 << 20, sleeper.stream));
  OK(api->memory_info(0, &after, &total));
  CHECK(after == before);
  pthread_barrier_wait(&sleeper.barrier);
  CHECK(pthread_join(thread, NULL) == 0);
  OK(api->stream_close(sleeper.stream));
}

struct captures {
  aquifer_stack *stack;
  aquifer_stream *stream;
  bool is_over;
};

static void *captures(void *argument) {
  struct captures *captures = argument;
  for (uint64_t key = 1; key <= 1000; key++) {
    /* Of all streams, and of the one that the other thread allocates on. */
    size_t named = key % 2;
    OK(api->capture_begin(captures->stack, key, 0, named ? &captures->stream : NULL, named));
    /* For an allocation to be on its way at the end. */
    for (volatile int step = 0; step < 3000; step++) continue;
    OK(api->capture_end(captures->stack, key, 0));
    OK(api->capture_release(captures->stack, key, 0));
  }
  __atomic_store_n(&captures->is_over, true, __ATOMIC_RELEASE);
  return NULL;
}

/* An allocation that a capture's end meets on its way has a block like any other. */
static void captures_beside_allocations(void) {
  aquifer_stream *stream = make_stream();
  struct captures state = {.stack = make_stack("pool(cuda)"), .stream = stream};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, captures, &state) == 0);
  while (!__atomic_load_n(&state.is_over, __ATOMIC_ACQUIRE))
    OK(api->deallocate(allocate(state.stack, 1000, stream), 1000, stream));
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(statistics_of(state.stack).live_bytes == 0);
  OK(api->stream_close(stream));
  OK(api->stack_release(state.stack));
}

struct shared {
  pthread_barrier_t barrier;
  aquifer_stack *stack;
  aquifer_stream *stream;
  void *block;
  int freed;
};

static void *frees(void *argument) {
  struct shared *shared = argument;
  for (int round = 0; round < 300; round++) {
    pthread_barrier_wait(&shared->barrier);
    aquifer_status status = api->deallocate(shared->block, 1000, shared->stream);
    CHECK(status == AQUIFER_OK || status == AQUIFER_ERROR_FREED_BEFORE);
    if (status == AQUIFER_OK) __atomic_fetch_add(&shared->freed, 1, __ATOMIC_RELAXED);
    pthread_barrier_wait(&shared->barrier);
  }
  return NULL;
}

/* Of two threads that free a block at once, one has freed it. */
static void frees_at_once(void) {
  struct shared shared = {.stack = make_stack("pool(cuda)"), .stream = make_stream()};
  pthread_t threads[2];
  CHECK(pthread_barrier_init(&shared.barrier, NULL, 3) == 0);
  for (int thread = 0; thread < 2; thread++) CHECK(pthread_create(&threads[thread], NULL, frees, &shared) == 0);
  for (int round = 0; round < 300; round++) {
    shared.block = allocate(shared.stack, 1000, shared.stream);
    pthread_barrier_wait(&shared.barrier);
    pthread_barrier_wait(&shared.barrier);
    CHECK(shared.freed == round + 1);
  }
  for (int thread = 0; thread < 2; thread++) CHECK(pthread_join(threads[thread], NULL) == 0);
  CHECK(statistics_of(shared.stack).live_bytes == 0);
  OK(api->stream_close(shared.stream));
  OK(api->stack_release(shared.stack));
}

static aquifer_stack *at_end_stack;
static aquifer_stream *at_end_stream;

/* Runs after the destructors of the library's own data of the thread. */
static void at_end(void *block) {
  OK(api->deallocate(block, 1000, at_end_stream));
  for (int pair = 0; pair < 10; pair++)
    OK(api->deallocate(allocate(at_end_stack, 1000, at_end_stream), 1000, at_end_stream));
}

static void *ends(void *argument) {
  pthread_key_t *key = argument;
  for (int pair = 0; pair < 10; pair++)
    OK(api->deallocate(allocate(at_end_stack, 1000, at_end_stream), 1000, at_end_stream));
  CHECK(pthread_setspecific(*key, allocate(at_end_stack, 1000, at_end_stream)) == 0);
  return NULL;
}

static void threads_that_end(void) {
  pthread_key_t key;
  at_end_stack = make_stack("pool(cuda)");
  at_end_stream = make_stream();
  CHECK(pthread_key_create(&key, at_end) == 0);
  for (int round = 0; round < 20; round++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, ends, &key) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(api->deallocate(allocate(at_end_stack, 1000, at_end_stream), 1000, at_end_stream));
  }
  CHECK(statistics_of(at_end_stack).live_bytes == 0);
  OK(api->stream_close(at_end_stream));
  OK(api->stack_release(at_end_stack));
}

/* A thread that is warm forks: its child is refused, and the parent goes on. */
static void forks(void) {
  aquifer_stack *stack = make_stack("pool(cuda)");
  aquifer_stream *stream = make_stream();
  void *block = NULL, *handle;
  OK(api->stream_handle(stream, &handle));
  for (int pair = 0; pair < 10; pair++) {
    OK(api->deallocate(allocate(stack, 1000, stream), 1000, stream));
    OK(api->allocate_on(stack, 1000, 0, handle, &block));
    OK(api->deallocate_on(block, 1000, 0, handle));
  }
  block = allocate(stack, 1000, stream);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    void *place;
    bool is_refused = api->allocate(stack, 1000, 0, stream, &place) == AQUIFER_ERROR_FORKED &&
                      api->allocate_on(stack, 1000, 0, handle, &place) == AQUIFER_ERROR_FORKED &&
                      api->deallocate(block, 1000, stream) == AQUIFER_ERROR_FORKED &&
                      api->deallocate_on(block, 1000, 0, handle) == AQUIFER_ERROR_FORKED;
    _exit(is_refused ? 0 : 1);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(api->deallocate(block, 1000, stream));
  OK(api->deallocate(allocate(stack, 1000, stream), 1000, stream));
  OK(api->stream_close(stream));
  OK(api->stack_release(stack));
}

int main(int count, char **arguments) {
  static char path[4096];
  CHECK(count == 2 && snprintf(path, sizeof path, "%s/warm.csv", arguments[1]) < (int)sizeof path);
  log_path = path;
  api = aquifer_get_api(AQUIFER_ABI_MAJOR);
  CHECK(api != NULL);
  pairs();
  many();
  handles();
  refusals();
  failures();
  changes();
  threads_that_sleep();
  captures_beside_allocations();
  frees_at_once();
  threads_that_end();
  forks();
  puts("all of it");
}
