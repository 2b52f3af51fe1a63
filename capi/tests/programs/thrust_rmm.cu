// RMM's own policy over a stack: a sort as the CPU's, with temporary memory of the stack. It wants RMM and a GPU.
#include "aquifer_rmm.hpp"
#include "check.h"

#include <rmm/device_uvector.hpp>
#include <rmm/exec_policy.hpp>
#include <rmm/mr/per_device_resource.hpp>

#include <thrust/sort.h>

#include <algorithm>
#include <cinttypes>
#include <random>
#include <vector>

static const aquifer_api *api = aquifer_get_api(AQUIFER_ABI_MAJOR);

static aquifer_statistics statistics_of(aquifer_stack *stack) {
  aquifer_statistics statistics{};
  statistics.struct_size = sizeof statistics;
  OK(api->statistics(stack, &statistics));
  return statistics;
}

// A sort by a policy of RMM's: the bytes of temporary memory.
template <typename Policy>
static uint64_t sorts(aquifer_stack *stack, cudaStream_t stream, Policy const &policy, const std::vector<int> &input) {
  rmm::device_uvector<int> numbers(input.size(), stream);
  size_t const bytes = input.size() * sizeof(int);
  CHECK(cudaMemcpyAsync(numbers.data(), input.data(), bytes, cudaMemcpyDefault, stream) == cudaSuccess);
  CHECK(statistics_of(stack).live_blocks == 1);
  uint64_t const before = statistics_of(stack).total_bytes;
  thrust::sort(policy, numbers.begin(), numbers.end());
  uint64_t const temporary = statistics_of(stack).total_bytes - before;
  CHECK(temporary >= bytes && statistics_of(stack).live_blocks == 1);

  std::vector<int> sorted(input), got(input.size());
  std::sort(sorted.begin(), sorted.end());
  CHECK(cudaMemcpyAsync(got.data(), numbers.data(), bytes, cudaMemcpyDefault, stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(got == sorted);
  return temporary;
}

int main() {
  std::mt19937 random(7);
  std::vector<int> input(10000000);
  for (int &number : input) number = static_cast<int>(random());
  CHECK(cudaSetDevice(0) == cudaSuccess);
  aquifer_stack *stack = nullptr;
  aquifer_stream *opened = nullptr;
  void *handle = nullptr;
  OK(api->stack_create("pool(cuda) | statistics", 0, &stack));
  OK(api->stream_create(0, &opened));
  OK(api->stream_handle(opened, &handle));
  auto const stream = static_cast<cudaStream_t>(handle);

  // As the current resource, and by name.
  rmm::mr::set_per_device_resource(rmm::cuda_device_id{0}, aquifer::rmm_resource(api, stack, 0));
  uint64_t const temporary = sorts(stack, stream, rmm::exec_policy(stream), input);
  auto const resource = aquifer::rmm_resource(api, stack, 0);
  CHECK(sorts(stack, stream, rmm::exec_policy_nosync(stream, resource), input) == temporary);
  printf("rmm: sorts of %zu are the CPU's; %" PRIu64 " bytes of temporary memory, %" PRIu64 " blocks in use\n",
         input.size(), temporary, statistics_of(stack).live_blocks);
  rmm::mr::reset_per_device_resource(rmm::cuda_device_id{0});
  OK(api->stream_close(opened));
  OK(api->stack_release(stack));
}
