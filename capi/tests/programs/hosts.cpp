// The entry points of hosts, as those find them: by dlopen and by name, called on threads of their own.
#include "check.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

static void *library;

template <typename Function>
static Function find(const char *name) {
  void *symbol = dlsym(library, name);
  if (symbol == nullptr) fprintf(stderr, "no %s\n", name);
  CHECK(symbol != nullptr);
  return reinterpret_cast<Function>(symbol);
}

#define FIND(name) static const auto name##_ = find<decltype(&name)>(#name)

static const aquifer_api *api;

static size_t requested(void *block) {
  aquifer_block_info info{};
  info.struct_size = sizeof info;
  return api->block_info(block, &info) == AQUIFER_OK ? info.requested_bytes : 0;
}

static aquifer_statistics statistics_of_own() {
  aquifer_stack *own = nullptr;
  OK(api->stack_default(0, &own));
  aquifer_statistics statistics{};
  statistics.struct_size = sizeof statistics;
  OK(api->statistics(own, &statistics));
  return statistics;
}

static void *handle_of(aquifer_stream *stream) {
  void *handle = nullptr;
  OK(api->stream_handle(stream, &handle));
  return handle;
}

static const size_t TOO_MUCH = size_t{1} << 50;

template <typename Allocate>
static bool throws_bad_alloc(Allocate allocate) {
  try {
    allocate();
  } catch (const std::bad_alloc &) {
    return true;
  }
  return false;
}

static void torch(void *stream, void *side) {
  FIND(aquifer_torch_alloc);
  FIND(aquifer_torch_alloc_nothrow);
  FIND(aquifer_torch_free);
  FIND(aquifer_torch_last_error);
  aquifer_torch_free_(nullptr, 0, 0, stream);
  CHECK(aquifer_torch_alloc_(0, 0, stream) == nullptr);
  CHECK(aquifer_torch_alloc_nothrow_(0, 0, stream) == nullptr);
  CHECK(aquifer_torch_last_error_()[0] == '\0');

  void *block = aquifer_torch_alloc_(1000, 0, stream);
  CHECK(requested(block) == 1000);
  CHECK(statistics_of_own().live_blocks == 1);
  aquifer_torch_free_(block, 1000, 0, stream);
  CHECK(requested(block) == 0 && statistics_of_own().live_blocks == 0);
  // Of the default stream, freed on another thread.
  block = aquifer_torch_alloc_nothrow_(1000, 0, nullptr);
  std::thread([&] { aquifer_torch_free_(block, 1000, 0, nullptr); }).join();
  CHECK(requested(block) == 0);

  // A second free is counted, and does nothing.
  aquifer_torch_free_(block, 1000, 0, nullptr);
  SAYS("freed before");
  CHECK(strcmp(aquifer_torch_last_error_(), api->last_error()) == 0);

  CHECK(throws_bad_alloc([&] { aquifer_torch_alloc_(TOO_MUCH, 0, stream); }));
  CHECK(throws_bad_alloc([&] { aquifer_torch_alloc_(SIZE_MAX, 0, stream); }));
  CHECK(throws_bad_alloc([&] { aquifer_torch_alloc_(1000, 7, stream); }));
  SAYS("7 was asked for");
  CHECK(aquifer_torch_alloc_nothrow_(TOO_MUCH, 0, stream) == nullptr);
  CHECK(aquifer_torch_alloc_nothrow_(1000, -1, stream) == nullptr);
  SAYS("-1");
  // After all of that it goes on.
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; number++) {
    threads.emplace_back([&] {
      for (int round = 0; round < 500; round++) {
        CHECK(throws_bad_alloc([&] { aquifer_torch_alloc_(TOO_MUCH, 0, side); }));
        void *own = aquifer_torch_alloc_(100 + round, 0, round % 2 ? stream : side);
        CHECK(requested(own) == size_t(100 + round));
        aquifer_torch_free_(own, 100 + round, 0, side);
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  CHECK(statistics_of_own().live_blocks == 0);
}

// What a call writes to standard error.
template <typename Call> static std::string on_standard_error(Call call) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  int kept = dup(STDERR_FILENO);
  CHECK(kept >= 0 && dup2(ends[1], STDERR_FILENO) >= 0);
  close(ends[1]);
  call();
  CHECK(dup2(kept, STDERR_FILENO) >= 0);
  close(kept);
  std::string said;
  char part[256];
  for (ssize_t count; (count = read(ends[0], part, sizeof part)) > 0;) said.append(part, size_t(count));
  close(ends[0]);
  return said;
}

// In a process of its own, whose stack has no pool.
static void torch_fraction_without_a_pool() {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    setenv("AQUIFER_STACK", "cuda", 1);
    library = dlopen("libaquifer.so.0", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    FIND(aquifer_torch_memory_fraction);
    std::string said = on_standard_error([&] { aquifer_torch_memory_fraction_(0.25, 0); });
    CHECK(said.find("aquifer: aquifer_torch_memory_fraction: the stack of device 0 has no pool") == 0);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void torch_hooks(void *stream, void *side) {
  FIND(aquifer_torch_alloc);
  FIND(aquifer_torch_alloc_nothrow);
  FIND(aquifer_torch_free);
  FIND(aquifer_torch_init);
  FIND(aquifer_torch_reset);
  FIND(aquifer_torch_memory_fraction);
  FIND(aquifer_torch_base_alloc);
  FIND(aquifer_torch_record_stream);
  FIND(aquifer_torch_last_error);
  aquifer_torch_init_(1);
  void *block = aquifer_torch_alloc_(1000, 0, stream);
  size_t size = 0;
  CHECK(aquifer_torch_base_alloc_(block, &size) == block && size >= 1000);
  CHECK(aquifer_torch_base_alloc_(block, nullptr) == block);
  size = 77;
  CHECK(aquifer_torch_base_alloc_(&size, &size) == &size && size == 77);
  aquifer_torch_record_stream_(block, side);
  aquifer_torch_record_stream_(block, nullptr);
  aquifer_torch_free_(block, 1000, 0, stream);
  aquifer_torch_record_stream_(block, side);
  CHECK(strstr(aquifer_torch_last_error_(), "is no block") != nullptr);

  // The caches are emptied, of what no block needs.
  CHECK(statistics_of_own().reserved_bytes > 0);
  aquifer_torch_reset_();
  CHECK(statistics_of_own().reserved_bytes == 0);

  uint64_t free_bytes = 0, total_bytes = 0;
  OK(api->memory_info(0, &free_bytes, &total_bytes));
  aquifer_torch_memory_fraction_(0.25, 0);
  CHECK(aquifer_torch_alloc_nothrow_(total_bytes / 3, 0, stream) == nullptr);
  block = aquifer_torch_alloc_nothrow_(total_bytes / 5, 0, stream);
  CHECK(block != nullptr);
  aquifer_torch_free_(block, total_bytes / 5, 0, stream);
  // No part of the memory: what was there stays, and a line says so.
  for (double none : {0.0, -0.0, -1.0, 1e-30, -1.0 / 0.0, 0.0 / 0.0}) {
    std::string said = on_standard_error([&] { aquifer_torch_memory_fraction_(none, 0); });
    CHECK(said.find("aquifer: aquifer_torch_memory_fraction: ") == 0);
    CHECK(said.find("the limit of the pool stays as it was") != std::string::npos);
    CHECK(said.find(aquifer_torch_last_error_()) != std::string::npos);
    CHECK(aquifer_torch_alloc_nothrow_(total_bytes / 3, 0, stream) == nullptr);
  }
  CHECK(on_standard_error([&] { aquifer_torch_memory_fraction_(0.25, 0); }).empty());
  block = aquifer_torch_alloc_nothrow_(total_bytes / 5, 0, stream);
  CHECK(block != nullptr);
  aquifer_torch_free_(block, total_bytes / 5, 0, stream);
  aquifer_torch_memory_fraction_(7.0, 0);
  block = aquifer_torch_alloc_nothrow_(total_bytes / 3, 0, stream);
  CHECK(block != nullptr);
  aquifer_torch_free_(block, total_bytes / 3, 0, stream);
  aquifer_torch_reset_();
}

using Pool = std::pair<unsigned long long, unsigned long long>;

// PyTorch calls the three with a `std::pair` of two numbers by value, which is passed as the structure is.
static void torch_pools(void *stream) {
  FIND(aquifer_torch_alloc);
  FIND(aquifer_torch_free);
  FIND(aquifer_torch_last_error);
  auto begin = find<void (*)(int, Pool, void *)>("aquifer_torch_begin_allocate_to_pool");
  auto end = find<void (*)(int, Pool)>("aquifer_torch_end_allocate_to_pool");
  auto release = find<void (*)(int, Pool)>("aquifer_torch_release_pool");
  Pool pool{0, 9};
  begin(0, pool, nullptr);
  void *inside = aquifer_torch_alloc_(4096, 0, stream);
  void *freed = aquifer_torch_alloc_(4096, 0, stream);
  aquifer_torch_free_(freed, 4096, 0, stream);
  end(0, pool);
  // What the graph freed is the graph's.
  void *outside = aquifer_torch_alloc_(4096, 0, stream);
  CHECK(outside != freed && outside != inside);
  aquifer_torch_free_(outside, 4096, 0, stream);
  begin(0, pool, nullptr);
  void *again = aquifer_torch_alloc_(4096, 0, stream);
  CHECK(again == freed);
  end(0, pool);
  release(0, pool);
  aquifer_torch_free_(again, 4096, 0, stream);
  aquifer_torch_free_(inside, 4096, 0, stream);
  end(0, pool);
  CHECK(strstr(aquifer_torch_last_error_(), "capture") != nullptr);
  // A second release of the key is an error, and not a crash.
  release(0, pool);
  CHECK(strstr(aquifer_torch_last_error_(), "capture") != nullptr);
}

// As PyTorch has it, where a `cudaStream_t` is a pointer.
using Filter = std::function<bool(void *)>;

// What the tests of filters need of a pool of PyTorch's.
struct Pools {
  void (*begin)(int, Pool, Filter) = find<void (*)(int, Pool, Filter)>("aquifer_torch_begin_allocate_to_pool");
  void (*end)(int, Pool) = find<void (*)(int, Pool)>("aquifer_torch_end_allocate_to_pool");
  void (*release)(int, Pool) = find<void (*)(int, Pool)>("aquifer_torch_release_pool");
  void *(*alloc)(size_t, int, void *) = find<void *(*)(size_t, int, void *)>("aquifer_torch_alloc");
  void (*free)(void *, size_t, int, void *) = find<void (*)(void *, size_t, int, void *)>("aquifer_torch_free");
  const char *(*last_error)() = find<const char *(*)()>("aquifer_torch_last_error");

  // Whether an allocation on a stream takes the block that a graph of the pool has freed.
  bool takes(void *block, void *stream) const {
    void *own = alloc(4096, 0, stream);
    CHECK(own != nullptr);
    free(own, 4096, 0, stream);
    return own == block;
  }
};

// A target whose copies are counted, and which is larger than what a function keeps in itself, or as large.
template <size_t WORDS> struct Counted {
  std::shared_ptr<void *> stream;
  size_t words[WORDS];
  bool operator()(void *asked) const { return asked == *stream; }
};

template <size_t WORDS> static void torch_filter_by_stream(void *stream, void *side) {
  Pools pools;
  Pool pool{5, WORDS};
  auto of_graph = std::make_shared<void *>(stream);
  {
    Filter filter = Counted<WORDS>{of_graph, {}};
    CHECK(of_graph.use_count() == 2);
    pools.begin(0, pool, filter);
    // The program's own is as it was, and one copy is kept.
    CHECK(of_graph.use_count() == 3 && filter && filter(stream) && !filter(side));
  }
  CHECK(of_graph.use_count() == 2);
  void *inside = pools.alloc(4096, 0, stream);
  pools.free(inside, 4096, 0, stream);
  for (int round = 0; round < 10; round++) {
    CHECK(pools.takes(inside, stream) && !pools.takes(inside, side) && !pools.takes(inside, nullptr));
  }
  // The answer is asked for anew, on each thread.
  *of_graph = side;
  void *of_side = pools.alloc(4096, 0, side);
  pools.free(of_side, 4096, 0, side);
  std::thread([&] { CHECK(pools.takes(of_side, side) && !pools.takes(inside, stream)); }).join();
  // A second begin of the pool is refused, and its filter destroyed. The line is for who does not ask.
  std::string said = on_standard_error([&] { pools.begin(0, pool, Counted<WORDS>{of_graph, {}}); });
  CHECK(said.find("aquifer: aquifer_torch_begin_allocate_to_pool: a capture of this key is active") == 0);
  CHECK(said.find(pools.last_error()) != std::string::npos && of_graph.use_count() == 2);
  // Another one at the same time.
  pools.begin(0, {6, WORDS}, Counted<WORDS>{std::make_shared<void *>(stream), {}});
  CHECK(!pools.takes(inside, stream) && pools.takes(of_side, side));
  // Ended on another thread.
  std::thread([&] { pools.end(0, pool); }).join();
  CHECK(of_graph.use_count() == 1);
  CHECK(!pools.takes(of_side, side));
  pools.end(0, {6, WORDS});
  pools.release(0, {6, WORDS});
  pools.release(0, pool);
}

static void torch_filter_by_thread(void *stream) {
  Pools pools;
  Pool pool{0, 11};
  // As `torch.cuda.use_mem_pool` has it.
  pools.begin(0, pool, [tid = std::this_thread::get_id()](void *) { return tid == std::this_thread::get_id(); });
  void *inside = pools.alloc(4096, 0, stream);
  pools.free(inside, 4096, 0, stream);
  for (int round = 0; round < 10; round++) {
    CHECK(pools.takes(inside, stream));
    std::thread([&] { CHECK(!pools.takes(inside, stream)); }).join();
  }
  pools.end(0, pool);
  pools.release(0, pool);
}

static bool takes_the_default(void *asked) { return asked == nullptr; }

// A function without a state, one without a target, and the default stream, whose handle is null.
static void torch_filters_without_state(void *stream) {
  Pools pools;
  Pool pool{0, 12};
  pools.begin(0, pool, takes_the_default);
  void *inside = pools.alloc(4096, 0, nullptr);
  pools.free(inside, 4096, 0, nullptr);
  CHECK(pools.takes(inside, nullptr) && !pools.takes(inside, stream));
  pools.end(0, pool);
  pools.release(0, pool);
  pools.begin(0, pool, nullptr);
  for (void *any : {stream, static_cast<void *>(nullptr)}) {
    inside = pools.alloc(4096, 0, any);
    pools.free(inside, 4096, 0, any);
    CHECK(pools.takes(inside, any));
  }
  pools.end(0, pool);
  pools.release(0, pool);
}

// Threads allocate while captures begin and end, with what their filters read gone behind each end.
static void torch_filters_beside_threads(void *stream, void *side) {
  Pools pools;
  bool is_over = false;
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; number++) {
    threads.emplace_back([&] {
      while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
        void *block = pools.alloc(4096, 0, side);
        pools.free(block, 4096, 0, side);
      }
    });
  }
  for (unsigned long long key = 1; key <= 300; key++) {
    auto graph = std::make_unique<void *>(stream);
    pools.begin(0, {13, key}, [graph = graph.get()](void *asked) { return asked == *graph; });
    void *inside = pools.alloc(4096, 0, stream);
    pools.free(inside, 4096, 0, stream);
    CHECK(pools.takes(inside, stream));
    pools.end(0, {13, key});
    graph.reset();
    pools.release(0, {13, key});
  }
  __atomic_store_n(&is_over, true, __ATOMIC_RELEASE);
  for (std::thread &thread : threads) thread.join();
}

// In a process of its own, which it ends: no exception passes the library.
static void torch_filter_that_throws() {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    struct rlimit none = {0, 0};
    CHECK(setrlimit(RLIMIT_CORE, &none) == 0 && freopen("/dev/null", "w", stderr) != nullptr);
    library = dlopen("libaquifer.so.0", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    Pools pools;
    pools.begin(0, {0, 14}, [](void *) -> bool { throw std::runtime_error("a filter's"); });
    try {
      pools.alloc(4096, 0, nullptr);
    } catch (...) {
    }
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void cupy() {
  FIND(aquifer_cupy_malloc);
  FIND(aquifer_cupy_free);
  CHECK(aquifer_cupy_malloc_(nullptr, 0, 0) == nullptr);
  aquifer_cupy_free_(nullptr, nullptr, 0);
  void *block = aquifer_cupy_malloc_(nullptr, 1000, 0);
  CHECK(requested(block) == 1000);
  std::thread([&] { aquifer_cupy_free_(nullptr, block, 0); }).join();
  CHECK(requested(block) == 0);
  CHECK(throws_bad_alloc([&] { aquifer_cupy_malloc_(nullptr, TOO_MUCH, 0); }));
  CHECK(throws_bad_alloc([&] { aquifer_cupy_malloc_(nullptr, 1000, 7); }));
  aquifer_cupy_free_(nullptr, block, 0);
  SAYS("freed before");
}

static void cuquantum(void *stream) {
  FIND(aquifer_cuquantum_device_handler);
  aquifer_cuquantum_handler handler;
  memset(&handler, 0x5a, sizeof handler);
  OK(aquifer_cuquantum_device_handler_(0, &handler));
  CHECK(strcmp(handler.name, "aquifer") == 0);
  void *block = nullptr;
  CHECK(handler.device_alloc(handler.ctx, &block, 1000, stream) == 0);
  CHECK(requested(block) == 1000);
  CHECK(handler.device_free(handler.ctx, block, 1000, stream) == 0);
  CHECK(handler.device_free(handler.ctx, block, 1000, stream) != 0);
  CHECK(handler.device_alloc(handler.ctx, &block, TOO_MUCH, stream) != 0);
  CHECK(handler.device_alloc(handler.ctx, nullptr, 1000, stream) != 0);
  CHECK(handler.device_alloc(handler.ctx, &block, 0, stream) == 0 && block == nullptr);
  CHECK(handler.device_free(handler.ctx, nullptr, 0, stream) == 0);
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, aquifer_cuquantum_device_handler_(0, nullptr));
  GIVES(AQUIFER_ERROR_NO_DEVICE, aquifer_cuquantum_device_handler_(7, &handler));
}

// A stream that a program opens and closes by the table while a host uses it stays the host's.
static void a_host_keeps_its_streams() {
  FIND(aquifer_torch_alloc_nothrow);
  FIND(aquifer_torch_free);
  FIND(aquifer_cupy_malloc);
  FIND(aquifer_cupy_free);
  for (int order = 0; order < 3; order++) {
    // Keeps the stream alive, as the host does.
    aquifer_stream *kept = nullptr, *opened = nullptr;
    OK(api->stream_create(0, &kept));
    void *handle = order == 2 ? nullptr : handle_of(kept);
    if (order != 1) OK(api->stream_open(0, handle, &opened));
    void *block = aquifer_torch_alloc_nothrow_(1000, 0, handle);
    CHECK(block != nullptr);
    if (order == 1) OK(api->stream_open(0, handle, &opened));
    OK(api->stream_close(opened));
    void *second = aquifer_torch_alloc_nothrow_(1000, 0, handle);
    if (second == nullptr) fprintf(stderr, "%s\n", api->last_error());
    CHECK(second != nullptr);
    // Detached, it is opened again by the host's next call.
    OK(api->stream_detach(0, handle));
    std::thread([&] {
      void *third = aquifer_torch_alloc_nothrow_(1000, 0, handle);
      CHECK(third != nullptr);
      aquifer_torch_free_(third, 1000, 0, handle);
    }).join();
    aquifer_torch_free_(block, 1000, 0, handle);
    aquifer_torch_free_(second, 1000, 0, handle);
    CHECK(requested(block) == 0 && requested(second) == 0);
    void *of_cupy = aquifer_cupy_malloc_(nullptr, 1000, 0);
    aquifer_cupy_free_(nullptr, of_cupy, 0);
    CHECK(requested(of_cupy) == 0);
  }
}

int main() {
  torch_fraction_without_a_pool();
  torch_filter_that_throws();
  setenv("AQUIFER_STACK", "pool(cuda) | statistics", 1);
  library = dlopen("libaquifer.so.0", RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  api = find<decltype(&aquifer_get_api)>("aquifer_get_api")(AQUIFER_ABI_MAJOR);
  aquifer_stream *stream = nullptr, *side = nullptr;
  OK(api->stream_create(0, &stream));
  OK(api->stream_create(0, &side));
  torch(handle_of(stream), handle_of(side));
  torch_hooks(handle_of(stream), handle_of(side));
  torch_pools(handle_of(stream));
  torch_filter_by_stream<1>(handle_of(stream), handle_of(side));
  torch_filter_by_stream<8>(handle_of(stream), handle_of(side));
  torch_filter_by_thread(handle_of(stream));
  torch_filters_without_state(handle_of(stream));
  torch_filters_beside_threads(handle_of(stream), handle_of(side));
  cupy();
  cuquantum(handle_of(stream));
  a_host_keeps_its_streams();
  CHECK(statistics_of_own().live_blocks == 0 && statistics_of_own().live_bytes == 0);
  // Closed, it stays: threads and blocks of it may live.
  const char *version = api->version();
  CHECK(dlclose(library) == 0);
  CHECK(api->version() == version && strchr(version, '.') != nullptr);
  puts("all of it");
}
