// The table from C++: handles that close themselves, and threads.
#include "check.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

static const aquifer_api *api = aquifer_get_api(AQUIFER_ABI_MAJOR);

struct Release {
  void operator()(aquifer_stack *stack) const { OK(api->stack_release(stack)); }
  void operator()(aquifer_stream *stream) const { OK(api->stream_close(stream)); }
};
using Stack = std::unique_ptr<aquifer_stack, Release>;
using Stream = std::unique_ptr<aquifer_stream, Release>;

static Stack make_stack(const char *text) {
  aquifer_stack *stack = nullptr;
  OK(api->stack_create(text, 0, &stack));
  return Stack(stack);
}

static Stream make_stream() {
  aquifer_stream *stream = nullptr;
  OK(api->stream_create(0, &stream));
  return Stream(stream);
}

struct Block {
  void *pointer;
  size_t bytes;
};

static Block allocate(const Stack &stack, size_t bytes, const Stream &stream) {
  Block block{nullptr, bytes};
  OK(api->allocate(stack.get(), bytes, 0, stream.get(), &block.pointer));
  CHECK(block.pointer != nullptr);
  return block;
}

static aquifer_statistics statistics_of(const Stack &stack) {
  aquifer_statistics statistics{};
  statistics.struct_size = sizeof statistics;
  OK(api->statistics(stack.get(), &statistics));
  return statistics;
}

// Blocks on their way from one thread to another.
class Exchange {
 public:
  void put(Block block) {
    std::lock_guard<std::mutex> guard(mutex_);
    blocks_.push_back(block);
  }
  bool take(Block &block, size_t which) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (blocks_.empty()) return false;
    std::swap(blocks_[which % blocks_.size()], blocks_.back());
    block = blocks_.back();
    blocks_.pop_back();
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

constexpr unsigned THREADS = 8;
constexpr int ROUNDS = 2000;

// Each thread allocates on its stream, and frees what any of them allocated: in the order of its own stream, of the
// block's, with a size and without. Each closes its stream while blocks of it are in use.
static void threads_share_a_stack() {
  Stack stack = make_stack("pool(cuda) | statistics");
  Exchange exchange;
  std::atomic<uint64_t> allocated{0}, rounded{0};
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < THREADS; number++) {
    threads.emplace_back([&, number] {
      std::minstd_rand random(number + 1);
      Stream stream = make_stream();
      for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = 1 + random() % (round % 16 == 0 ? 1000000 : 5000);
        exchange.put(allocate(stack, bytes, stream));
        allocated += bytes;
        rounded += (bytes + 255) / 256 * 256;
        if (round % 300 == 299) stream = make_stream();
        Block block;
        if (round % 8 == 7 || !exchange.take(block, random())) continue;
        switch (random() % 4) {
          case 0:
            OK(api->record_stream(block.pointer, stream.get()));
            OK(api->deallocate(block.pointer, block.bytes, nullptr));
            break;
          case 1:
            OK(api->deallocate(block.pointer, 0, nullptr));
            break;
          default:
            OK(api->deallocate(block.pointer, block.bytes, stream.get()));
        }
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  aquifer_statistics statistics = statistics_of(stack);
  // A simulated device has blocks of just these bytes, a GPU whole units.
  const char *backend = std::getenv("AQUIFER_BACKEND");
  CHECK(statistics.total_bytes == (backend && strcmp(backend, "sim") == 0 ? allocated : rounded));
  CHECK(statistics.live_blocks == THREADS * ROUNDS / 8);
  Block block;
  while (exchange.take(block, 0)) OK(api->deallocate(block.pointer, block.bytes, nullptr));
  CHECK(statistics_of(stack).live_blocks == 0 && statistics_of(stack).live_bytes == 0);
}

// Blocks, whose stack is released and whose streams are closed, are freed by threads that come later.
static void blocks_outlive_all() {
  uint64_t before = 0, after = 0, total = 0;
  OK(api->memory_info(0, &before, &total));
  std::vector<Block> blocks;
  {
    Stack stack = make_stack("pool(cuda)");
    Stream stream = make_stream();
    for (size_t number = 0; number < 64; number++)
      blocks.push_back(allocate(stack, 1000 * (number + 1), stream));
  }
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < THREADS; number++) {
    threads.emplace_back([&, number] {
      Stream own = make_stream();
      for (size_t which = number; which < blocks.size(); which += THREADS) {
        aquifer_block_info info{};
        info.struct_size = sizeof info;
        OK(api->block_info(blocks[which].pointer, &info));
        CHECK(info.requested_bytes == blocks[which].bytes);
        OK(api->deallocate(blocks[which].pointer, blocks[which].bytes, number % 2 ? own.get() : nullptr));
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  OK(api->memory_info(0, &after, &total));
  CHECK(after == before);
}

// Threads free blocks of a stack while it is released. Its memory goes back, at the latest with the next stack's end.
static void a_stack_ends_among_frees() {
  uint64_t before = 0, after = 0, total = 0;
  Stream stream = make_stream();
  OK(api->memory_info(0, &before, &total));
  for (int round = 0; round < 5; round++) {
    Stack stack = make_stack("pool(cuda)");
    std::atomic<unsigned> ready{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; number++) {
      std::vector<Block> blocks;
      for (int block = 0; block < 10; block++) blocks.push_back(allocate(stack, 5000, stream));
      threads.emplace_back([&, blocks] {
        // The thread's later calls take no lock.
        Block own = allocate(stack, 5000, stream);
        OK(api->deallocate(own.pointer, own.bytes, stream.get()));
        for (ready++; ready < 5;) std::this_thread::yield();
        for (const Block &block : blocks) OK(api->deallocate(block.pointer, block.bytes, stream.get()));
      });
    }
    for (ready++; ready < 5;) std::this_thread::yield();
    stack.reset();
    for (std::thread &thread : threads) thread.join();
  }
  make_stack("pool(cuda)").reset();
  OK(api->memory_info(0, &after, &total));
  CHECK(after == before);
}

// Of many threads that free one block, one does.
static void one_thread_alone_frees() {
  Stack stack = make_stack("pool(cuda)");
  Stream stream = make_stream();
  const int rounds = 200;
  for (int round = 0; round < rounds; round++) {
    Block block = allocate(stack, 4096, stream);
    std::atomic<unsigned> ready{0}, freed{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; number++) {
      threads.emplace_back([&] {
        for (ready++; ready < 4;) std::this_thread::yield();
        aquifer_status status = api->deallocate(block.pointer, block.bytes, nullptr);
        CHECK(status == AQUIFER_OK || status == AQUIFER_ERROR_FREED_BEFORE);
        freed += status == AQUIFER_OK;
      });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(freed == 1);
  }
  aquifer_misuse misuse{};
  misuse.struct_size = sizeof misuse;
  OK(api->misuse(&misuse));
  CHECK(misuse.freed_before == 3 * rounds);
  CHECK(misuse.unknown == 0 && misuse.wrong_size == 0 && misuse.wrong_device == 0);
}

// The message is the thread's own.
static void messages_are_of_threads() {
  aquifer_stack *stack = nullptr;
  GIVES(AQUIFER_ERROR_INVALID_ARGUMENT, api->stack_create("lake(cuda)", 0, &stack));
  std::thread([] { CHECK(api->last_error()[0] == '\0'); }).join();
  SAYS("lake");
}

// What a thread, or the program, has until it ends: a block, and a stack and a stream that were made for it.
struct Keeper {
  Stack stack;
  Stream stream;
  Block block{nullptr, 0};

  void fill() {
    stack = make_stack("pool(cuda) | statistics");
    stream = make_stream();
    block = allocate(stack, 1000, stream);
  }

  ~Keeper() {
    if (block.pointer == nullptr) return;
    // The thread's message may be gone, and the code is not.
    GIVES(AQUIFER_ERROR_NOT_OURS, api->deallocate(this, 0, nullptr));
    OK(api->deallocate(block.pointer, block.bytes, stream.get()));
    Block last = allocate(stack, 2000, stream);
    OK(api->record_stream(last.pointer, make_stream().get()));
    OK(api->deallocate(last.pointer, last.bytes, nullptr));
    CHECK(statistics_of(stack).live_blocks == 0);
    ended++;
  }

  static std::atomic<unsigned> ended;
};

std::atomic<unsigned> Keeper::ended{0};

// Made before the library's own data of the thread, and gone after that.
static thread_local Keeper of_thread;
static Keeper of_program;

static void threads_free_as_they_end() {
  pthread_key_t key;
  CHECK(pthread_key_create(&key, [](void *keeper) { delete static_cast<Keeper *>(keeper); }) == 0);
  for (int round = 0; round < 4; round++) {
    unsigned before = Keeper::ended;
    std::thread([&] {
      // Its destructor is registered here, before the thread's first call.
      of_thread.fill();
      if (round % 2) return;
      // These are destroyed after all of the former kind.
      Keeper *keeper = new Keeper;
      keeper->fill();
      CHECK(pthread_setspecific(key, keeper) == 0);
    }).join();
    CHECK(Keeper::ended == before + (round % 2 ? 1 : 2));
  }
}

int main() {
  threads_share_a_stack();
  blocks_outlive_all();
  a_stack_ends_among_frees();
  one_thread_alone_frees();
  messages_are_of_threads();
  threads_free_as_they_end();
  of_thread.fill();
  of_program.fill();
  // Said at the end of all, after main.
  std::atexit([] { CHECK(Keeper::ended > 6); });
  puts("all of it");
}
