// A warm pair of Aquifer's beside RMM's and CUDA's own: an allocation and its free, in nanoseconds, the median of rounds
// that take turns. It takes a GPU.
#include "aquifer_rmm.hpp"
#include "check.h"

#include <algorithm>
#include <chrono>
#include <cuda_runtime_api.h>
#include <functional>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <vector>

extern "C" void *aquifer_torch_alloc_nothrow(size_t bytes, int device, void *stream);
extern "C" void aquifer_torch_free(void *pointer, size_t bytes, int device, void *stream);

static const aquifer_api *api = aquifer_get_api(AQUIFER_ABI_MAJOR);

// A resource of RMM's, called through a pointer that the compiler does not see through.
template <typename Resource>
static std::function<void(size_t)> pair_of(Resource &resource, cudaStream_t stream) {
  return [&resource, stream](size_t bytes) {
    cuda::stream_ref ref(stream);
    resource.deallocate(ref, resource.allocate(ref, bytes, 256), bytes, 256);
  };
}

struct Row {
  const char *name;
  int pairs;
  std::function<void(size_t)> pair;
  std::vector<double> took;
};

static void report(std::vector<Row> &rows, size_t bytes) {
  using clock = std::chrono::steady_clock;
  for (Row &row : rows) row.took.clear();
  for (int round = 0; round < 9; round++) {
    for (Row &row : rows) {
      for (int pair = 0; pair < 1000; pair++) row.pair(bytes);
      auto start = clock::now();
      for (int pair = 0; pair < row.pairs; pair++) row.pair(bytes);
      row.took.push_back(std::chrono::duration<double, std::nano>(clock::now() - start).count() / row.pairs);
    }
  }
  for (Row &row : rows) {
    std::sort(row.took.begin(), row.took.end());
    printf("| %s | %zu | %.1f | %.1f |\n", row.name, bytes, row.took.front(), row.took[row.took.size() / 2]);
  }
}

int main() {
  aquifer_stack *stack = nullptr;
  aquifer_stream *opened = nullptr;
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  OK(api->stack_default(0, &stack));
  OK(api->stream_open(0, stream, &opened));
  auto over_aquifer = aquifer::rmm_resource(api, stack, 0);
  rmm::mr::pool_memory_resource pool{rmm::mr::cuda_memory_resource{}, size_t{64} << 20};
  rmm::mr::callback_memory_resource over_rmm(
      [&pool](size_t bytes, cuda::stream_ref ref, void *) { return pool.allocate(ref, bytes, 256); },
      [&pool](void *pointer, size_t bytes, cuda::stream_ref ref, void *) { pool.deallocate(ref, pointer, bytes, 256); });
  rmm::mr::cuda_async_memory_resource async{};
  std::vector<Row> rows;
  // The loop, and a call by a std::function: what each row has besides.
  rows.push_back({"nothing", 1000000, [](size_t) {}, {}});
  rows.push_back({"the table, opened stream", 1000000, [=](size_t bytes) {
    void *block;
    api->allocate(stack, bytes, 0, opened, &block);
    api->deallocate(block, bytes, opened);
  }, {}});
  rows.push_back({"the table, driver's handle", 1000000, [=](size_t bytes) {
    void *block;
    api->allocate_on(stack, bytes, 0, stream, &block);
    api->deallocate_on(block, bytes, 0, stream);
  }, {}});
  rows.push_back({"PyTorch's entry points", 1000000, [=](size_t bytes) {
    aquifer_torch_free(aquifer_torch_alloc_nothrow(bytes, 0, stream), bytes, 0, stream);
  }, {}});
  rows.push_back({"RMM's callback over Aquifer", 1000000, pair_of(over_aquifer, stream), {}});
  rows.push_back({"RMM's callback over RMM's pool", 1000000, pair_of(over_rmm, stream), {}});
  rows.push_back({"RMM's pool", 1000000, pair_of(pool, stream), {}});
  rows.push_back({"RMM's cuda_async", 300000, pair_of(async, stream), {}});
  rows.push_back({"cudaMallocAsync", 300000, [=](size_t bytes) {
    void *block;
    cudaMallocAsync(&block, bytes, stream);
    cudaFreeAsync(block, stream);
  }, {}});
  // The default pool keeps what it has, as RMM's does.
  cudaMemPool_t of_device;
  uint64_t all = UINT64_MAX;
  CHECK(cudaDeviceGetDefaultMemPool(&of_device, 0) == cudaSuccess);
  CHECK(cudaMemPoolSetAttribute(of_device, cudaMemPoolAttrReleaseThreshold, &all) == cudaSuccess);
  puts("| pair | bytes | best | median |\n| --- | --- | --- | --- |");
  report(rows, 256);
  report(rows, size_t{1} << 20);
  OK(api->stream_close(opened));
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}
