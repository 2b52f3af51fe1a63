// What RMM's resources reserve over what is live: rmm_traffic_peer pool|binning|async TRACE ... Each pool
// starts empty, as ours does, and gives nothing back before it goes.
#include "traffic.hpp"
#include <rmm/cuda_device.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/resource_ref.hpp>

static size_t free_memory() {
  size_t free = 0, total = 0;
  CK(cudaMemGetInfo(&free, &total));
  return free;
}

struct RmmTraffic {
  using Block = void*;
  rmm::device_async_resource_ref mr;
  size_t before;
  void* alloc(size_t bytes, cudaStream_t s) { return mr.allocate(cuda::stream_ref{s}, bytes, 256); }
  void free(void* p, size_t bytes, cudaStream_t, cudaStream_t s) { mr.deallocate(cuda::stream_ref{s}, p, bytes, 256); }
  size_t reserved() const { return before - free_memory(); }
};

// The driver's pool counts by itself.
struct AsyncTraffic : RmmTraffic {
  cudaMemPool_t pool;
  size_t reserved() const {
    uint64_t most = 0;
    CK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &most));
    return most;
  }
};

int main(int argc, char** argv) {
  if (argc < 3) { fprintf(stderr, "rmm_traffic_peer pool|binning|async TRACE ...\n"); return 2; }
  CK(cudaSetDevice(0));
  const std::string which = argv[1];
  using Pool = rmm::mr::pool_memory_resource;
  // The name that the other programs give it.
  const std::string peer = which == "async" ? "cudaMallocAsync" : "rmm " + which;
  run_traffic(peer, argc - 2, argv + 2, [&](auto run) {
    CK(cudaDeviceSynchronize());
    if (which == "async") {
      rmm::mr::cuda_async_memory_resource async;
      AsyncTraffic p{{async, 0}, async.pool_handle()};
      run(p);
      return;
    }
    size_t before = free_memory();
    Pool pool{rmm::mr::cuda_memory_resource{}, 0};
    if (which == "binning") {
      rmm::mr::binning_memory_resource bins{pool, 18, 22};
      RmmTraffic p{bins, before};
      run(p);
    } else {
      RmmTraffic p{pool, before};
      run(p);
    }
  });
}
