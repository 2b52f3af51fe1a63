// Thrust's algorithms over a stack: a sort and a scan as the CPU's, with temporary memory of the stack, on the stream that
// was named. With nvcc it is for a GPU. As C++ with THRUST_DEVICE_SYSTEM_CPP the host runs the algorithms, on managed
// memory of a simulated device.
//   thrust LOG [COUNT]
#include "aquifer_thrust.hpp"
#include "check.h"

#include <thrust/copy.h>
#include <thrust/functional.h>
#include <thrust/scan.h>
#include <thrust/sort.h>

#include <algorithm>
#include <cinttypes>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#if AQUIFER_THRUST_ON_CUDA
#define MEMORY "cuda"
#else
#define MEMORY "managed"
#endif

static const aquifer_api *api = aquifer_get_api(AQUIFER_ABI_MAJOR);

static aquifer_statistics statistics_of(aquifer_stack *stack) {
  aquifer_statistics statistics{};
  statistics.struct_size = sizeof statistics;
  OK(api->statistics(stack, &statistics));
  return statistics;
}

// What a log has of the blocks after the first: how many, their bytes, and the streams of all.
struct Logged {
  uint64_t allocations = 0, frees = 0, bytes = 0;
  std::set<std::string> streams;
};

static Logged logged(const char *path) {
  Logged logged;
  uint64_t first = 0;
  std::ifstream file(path);
  std::string line;
  CHECK(std::getline(file, line) && line == "Thread,Time,Action,Pointer,Size,Stream");
  while (std::getline(file, line)) {
    std::vector<std::string> fields;
    std::istringstream text(line);
    for (std::string field; std::getline(text, field, ',');) fields.push_back(field);
    CHECK(fields.size() == 6);
    logged.streams.insert(fields[5]);
    if (fields[2] == "allocate") {
      logged.allocations += 1;
      logged.bytes += std::stoull(fields[4]);
      if (logged.allocations == 1) first = logged.bytes;
    } else {
      CHECK(fields[2] == "free");
      logged.frees += 1;
    }
  }
  CHECK(logged.allocations >= 1 && logged.frees == logged.allocations);
  logged.allocations -= 1;
  logged.frees -= 1;
  logged.bytes -= first;
  return logged;
}

template <typename T>
static std::vector<T> on_host(const aquifer::device_vector<T> &vector) {
  std::vector<T> host(vector.size());
  thrust::copy(vector.begin(), vector.end(), host.begin());
  return host;
}

using Numbers = aquifer::device_vector<int>;
using Sums = aquifer::device_vector<long long>;

static std::vector<int> random_numbers(size_t count) {
  std::mt19937 random(7);
  std::vector<int> numbers(count);
  // On the host, Thrust of CCCL 3.0 sorts negative numbers behind the positive ones, whoever has its temporary memory.
  int const least = AQUIFER_THRUST_ON_CUDA ? std::numeric_limits<int>::min() : 0;
  std::uniform_int_distribution<int> number_of(least, std::numeric_limits<int>::max());
  for (int &number : numbers) number = number_of(random);
  return numbers;
}

// By a policy of this type: the CPU's results, and temporary memory of the stack, on the stream.
template <typename Policy>
static Logged sorts_and_scans(aquifer_stack *stack, aquifer_stream *stream, const std::vector<int> &input, const char *log) {
  void *handle = nullptr;
  OK(api->stream_handle(stream, &handle));
  auto const on = static_cast<aquifer::thrust_stream>(handle);
  aquifer::mr::stack_resource const mr(api, stack, 0);
  Numbers numbers(input.begin(), input.end(), Numbers::allocator_type(nullptr, mr));
  Sums sums(input.size(), 0, Sums::allocator_type(nullptr, mr));
  mr.wait(nullptr);

  aquifer_statistics const before = statistics_of(stack);
  CHECK(before.live_blocks == 2);
  OK(api->log_start(stack, log));
  // A block by the handle alone: the first rows have the stream's name.
  mr.deallocate(on, mr.allocate(on, 1), 1);
  thrust::sort(Policy(on, mr), numbers.begin(), numbers.end());
  thrust::inclusive_scan(Policy(on, mr), numbers.begin(), numbers.end(), sums.begin(), 0LL,
                         thrust::plus<long long>());
  OK(api->stream_synchronize(stream));
  OK(api->log_stop(stack));
  aquifer_statistics const after = statistics_of(stack);
  CHECK(after.live_blocks == 2 && after.live_bytes == before.live_bytes);

  Logged const temporary = logged(log);
  CHECK(temporary.streams.size() == 1);
  // A radix sort has room for all elements once more.
  CHECK(temporary.allocations >= 1 && temporary.bytes >= input.size() * sizeof(int));
  CHECK(after.total_bytes - before.total_bytes >= temporary.bytes);

  std::vector<int> sorted(input);
  std::sort(sorted.begin(), sorted.end());
  std::vector<long long> summed(input.size());
  std::inclusive_scan(sorted.begin(), sorted.end(), summed.begin(), std::plus<long long>(), 0LL);
  CHECK(on_host(numbers) == sorted && on_host(sums) == summed);
  return temporary;
}

// Without a resource it is the process's own stack, and without a stream the legacy default stream.
static void the_default_is_the_process_s_own_stack(const std::vector<int> &input) {
  aquifer_stack *own = nullptr;
  OK(api->stack_default(0, &own));
  uint64_t const before = statistics_of(own).total_bytes;
  {
    Numbers numbers(input.begin(), input.end());
    CHECK(numbers.get_allocator().resource().get() == own && numbers.get_allocator().stream() == nullptr);
    uint64_t const of_the_vector = statistics_of(own).total_bytes;
    CHECK(of_the_vector - before >= input.size() * sizeof(int));
    thrust::sort(aquifer::exec_policy(), numbers.begin(), numbers.end());
    CHECK(statistics_of(own).total_bytes - of_the_vector >= input.size() * sizeof(int));
    CHECK(statistics_of(own).live_blocks == 1);
    CHECK(thrust::is_sorted(aquifer::exec_policy_nosync(), numbers.begin(), numbers.end()));
  }
  CHECK(statistics_of(own).live_blocks == 0);
}

// A sort without room throws, and leaves no block.
static void a_sort_without_memory_throws(const std::vector<int> &input) {
  size_t const unit = size_t{2} << 20;
  std::string const bytes = std::to_string((input.size() * sizeof(int) + unit - 1) / unit * unit);
  aquifer_stack *stack = nullptr;
  OK(api->stack_create(("pool(" MEMORY ", max=" + bytes + ") | statistics").c_str(), 0, &stack));
  aquifer::mr::stack_resource const mr(api, stack, 0);
  // The resource keeps it.
  OK(api->stack_release(stack));
  {
    Numbers numbers(input.begin(), input.end(), Numbers::allocator_type(nullptr, mr));
    bool is_thrown = false;
    try {
      thrust::sort(aquifer::exec_policy(nullptr, mr), numbers.begin(), numbers.end());
    } catch (const aquifer::out_of_memory &error) {
      is_thrown = strncmp(error.what(), "aquifer: ", 9) == 0;
    }
    CHECK(is_thrown && statistics_of(mr.get()).live_blocks == 1);
    CHECK(on_host(numbers) == input);
  }
  CHECK(statistics_of(mr.get()).live_blocks == 0);
}

template <typename Call>
static bool throws_bad_alloc(Call call) {
  try {
    call();
  } catch (const aquifer::out_of_memory &) {
    return false;
  } catch (const aquifer::bad_alloc &error) {
    return strncmp(error.what(), "aquifer: ", 9) == 0;
  }
  return false;
}

static void allocators_compare_and_convert(aquifer_stack *stack, aquifer_stream *stream) {
  void *handle = nullptr;
  OK(api->stream_handle(stream, &handle));
  auto const on = static_cast<aquifer::thrust_stream>(handle);
  aquifer::mr::stack_resource const mr(api, stack, 0);
  aquifer::mr::thrust_allocator<int> const ints(on, mr);
  aquifer::mr::thrust_allocator<double> doubles(ints);
  CHECK(doubles == ints && doubles.resource() == mr && doubles.stream() == on);
  CHECK(aquifer::mr::thrust_allocator<int>(nullptr, mr) != ints);
  CHECK(aquifer::mr::thrust_allocator<int>(on) != ints);
  CHECK(aquifer::mr::stack_resource(0) == aquifer::mr::stack_resource() && aquifer::mr::stack_resource() != mr);

  thrust::device_ptr<double> const block = doubles.allocate(1000);
  aquifer_block_info info{};
  info.struct_size = sizeof info;
  OK(api->block_info(block.get(), &info));
  CHECK(info.requested_bytes == 8000 && statistics_of(stack).live_blocks == 1);
  doubles.deallocate(block, 1000);
  CHECK(doubles.allocate(0).get() == nullptr);

  bool is_thrown = false;
  try {
    (void)doubles.allocate(doubles.max_size() + 1);
  } catch (const std::bad_alloc &error) {
    is_thrown = strncmp(error.what(), "aquifer: ", 9) == 0;
  }
  CHECK(is_thrown);
  // cudaStreamPerThread is another stream on each thread.
  auto const per_thread = reinterpret_cast<aquifer::thrust_stream>(uintptr_t{2});
  CHECK(throws_bad_alloc([&] { (void)aquifer::mr::thrust_allocator<int>(per_thread, mr).allocate(1); }));
#if !AQUIFER_THRUST_ON_CUDA
  CHECK(throws_bad_alloc([&] { aquifer::exec_policy(per_thread, mr); }));
#endif
  CHECK(throws_bad_alloc([&] { aquifer::mr::stack_resource(4711); }));
  CHECK(statistics_of(stack).live_blocks == 0);
}

static void a_vector_begins_with_a_value(aquifer_stack *stack, aquifer_stream *opened) {
  void *handle = nullptr;
  OK(api->stream_handle(opened, &handle));
  auto const stream = static_cast<aquifer::thrust_stream>(handle);
  // The README's lines.
  aquifer::mr::stack_resource mr(api, stack, 0);
  aquifer::device_vector<int> numbers(1000, 7, aquifer::mr::thrust_allocator<int>(nullptr, mr));
  thrust::sort(aquifer::exec_policy(stream, mr), numbers.begin(), numbers.end());
  CHECK(on_host(numbers) == std::vector<int>(1000, 7));
  numbers.resize(5000, 9);
  CHECK(on_host(numbers)[999] == 7 && on_host(numbers)[4999] == 9 && statistics_of(stack).live_blocks == 1);
}

int main(int count_of_arguments, char **arguments) {
  CHECK(count_of_arguments >= 2);
  CHECK(setenv("AQUIFER_STACK", "pool(" MEMORY ") | statistics", 1) == 0);
  size_t const count = count_of_arguments > 2 ? strtoull(arguments[2], nullptr, 10) : 10000000;
  // More than fits into the part of a pool's unit that is left.
  CHECK(count > (size_t{2} << 20) / sizeof(int));
  std::vector<int> const input = random_numbers(count);
  aquifer_stack *stack = nullptr;
  aquifer_stream *stream = nullptr;
  OK(api->stack_create("pool(" MEMORY ") | statistics", 0, &stack));
  OK(api->stream_create(0, &stream));

  Logged const temporary = sorts_and_scans<aquifer::exec_policy>(stack, stream, input, arguments[1]);
  Logged const nosync = sorts_and_scans<aquifer::exec_policy_nosync>(stack, stream, input, arguments[1]);
  CHECK(nosync.bytes == temporary.bytes && nosync.allocations == temporary.allocations);
  CHECK(statistics_of(stack).live_blocks == 0);
  allocators_compare_and_convert(stack, stream);
  a_vector_begins_with_a_value(stack, stream);
  the_default_is_the_process_s_own_stack(input);
  a_sort_without_memory_throws(input);

  printf("thrust: sort and scan of %zu are the CPU's; %" PRIu64 " bytes of temporary memory in %" PRIu64
         " blocks, %" PRIu64 " in use\n",
         count, temporary.bytes, temporary.allocations, statistics_of(stack).live_blocks);
  OK(api->stream_close(stream));
  OK(api->stack_release(stack));
}
