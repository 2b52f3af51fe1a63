// What PyTorch's caching allocator reserves over what is live: torch_traffic_peer TRACE ... A block that
// another stream frees is recorded on that stream first, as `Tensor.record_stream` does. The allocator is
// the one that PYTORCH_ALLOC_CONF names: expandable_segments:True, backend:cudaMallocAsync or neither.
#include "traffic.hpp"
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cstring>

namespace torch_cache = c10::cuda::CUDACachingAllocator;

struct TorchTraffic {
  using Block = c10::DataPtr;
  static c10::cuda::CUDAStream stream(cudaStream_t s) { return c10::cuda::getStreamFromExternal(s, 0); }
  c10::DataPtr alloc(size_t bytes, cudaStream_t s) {
    c10::cuda::setCurrentCUDAStream(stream(s));
    return torch_cache::get()->allocate(bytes);
  }
  void free(c10::DataPtr& block, size_t, cudaStream_t made_on, cudaStream_t s) {
    if (made_on != s) torch_cache::recordStream(block, stream(s));
    block.clear();
  }
  size_t reserved() const { return torch_cache::getDeviceStats(0).reserved_bytes[0].peak; }
};

static bool is_expandable() {
  const char* settings = getenv("PYTORCH_ALLOC_CONF");
  return settings && strstr(settings, "expandable_segments:True");
}

// Whether PyTorch took the setting: the rows of another allocator would have a wrong name.
static bool has_expandable_segments() {
  CK(cudaDeviceSynchronize());
  torch_cache::emptyCache();
  auto block = torch_cache::get()->allocate(64 << 20);
  for (auto& segment : torch_cache::snapshot().segments)
    if (segment.is_expandable) return true;
  return false;
}

int main(int argc, char** argv) {
  CK(cudaSetDevice(0));
  torch_cache::init(1);
  std::string peer = "torch caching";
  if (torch_cache::name() == "cudaMallocAsync") peer = "torch cudaMallocAsync";
  else if (is_expandable()) {
    if (!has_expandable_segments()) { fprintf(stderr, "PyTorch has no expandable segments here\n"); return 1; }
    peer = "torch expandable";
  }
  run_traffic(peer, argc - 1, argv + 1, [&](auto run) {
    CK(cudaDeviceSynchronize());
    torch_cache::emptyCache();
    torch_cache::resetPeakStats(0);
    TorchTraffic p;
    run(p);
  });
}
