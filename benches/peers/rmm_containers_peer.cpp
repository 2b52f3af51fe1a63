// RMM's device_uvector made and dropped, a stream a thread; one that grows; RMM's multi-stream benchmark.
// Arguments: pool, binning, arena, async; all but the arena without one. `streams` behind it leaves
// the vectors out.
#include "workloads.hpp"
#include <cuda_runtime_api.h>
#include <cstdlib>
#include <memory>
#include <rmm/cuda_device.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#define CK(x) do { auto e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)

static cudaStream_t streams[16];

static void row(const std::string& name, const std::string& workload, double ns) {
  printf("%s,%s,%.1f\n", name.c_str(), workload.c_str(), ns);
  fflush(stdout);
}

// ns of the whole program to make and drop one vector, from the current resource.
static double vectors(int threads, uint32_t pairs) {
  std::atomic<int> ready{0}, done{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> ts;
  for (int t = 0; t < threads; ++t) ts.emplace_back([&, t] {
    CK(cudaSetDevice(0));
    { rmm::device_uvector<uint8_t> v(1 << 20, streams[t]); }
    ready++; while (!go) std::this_thread::yield();
    for (uint32_t i = 0; i < pairs; ++i) rmm::device_uvector<uint8_t> v(1 << 20, streams[t]);
    done++; while (done < threads) std::this_thread::yield();
  });
  while (ready < threads) std::this_thread::yield();
  double t0 = now_ns(); go = true;
  while (done < threads) std::this_thread::yield();
  double dt = now_ns() - t0;
  for (auto& t : ts) t.join();
  return dt / ((double)pairs * threads);
}

// The kernel of benches/pool/kernels.rs: waits for so many ticks, then writes when it ended.
static const char* SPIN = R"(
.version 6.4
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 out, .param .u64 ticks) {
    .reg .pred %p; .reg .u64 %rd<6>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [ticks];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u64 %rd3, %clock64;
again:
    mov.u64 %rd4, %clock64;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p, %rd5, %rd2;
    @%p bra again;
    st.global.u64 [%rd1], %rd4;
    ret;
}
)";

static void spin(cudaKernel_t kernel, cudaStream_t stream, uint64_t* out) {
  uint64_t ticks = 1000000;
  void* arguments[] = {&out, &ticks};
  CK(cudaLaunchKernel((const void*)kernel, dim3(1), dim3(1), arguments, 0, stream));
}

// A vector that grows from 1 MiB to 8 GiB, twice, on a resource that starts empty: benches/pool/growing.rs.
// `make` makes one that keeps its memory, so what the driver has less is the most that it held.
template <class Make> static void growing(const std::string& peer, Make make) {
  constexpr size_t MIB = 1 << 20, LONGEST = 8ull << 30;
  auto free_memory = [] { size_t free = 0, total = 0; CK(cudaMemGetInfo(&free, &total)); return free; };
  for (bool doubling : {true, false}) {
    const std::string name = doubling ? "growing vector by doubling" : "growing vector by 64MiB";
    CK(cudaDeviceSynchronize());
    const size_t before = free_memory();
    auto resource = make();
    for (bool again : {false, true}) try {
      rmm::device_uvector<uint8_t> vector(MIB, streams[0], *resource);
      CK(cudaDeviceSynchronize());
      size_t copied = 0;
      double start = now_ns();
      while (vector.size() < LONGEST) {
        const size_t length = vector.size();
        const void* data = vector.data();
        vector.resize(std::min(doubling ? 2 * length : length + 64 * MIB, LONGEST), streams[0]);
        if (vector.data() != data && length > 2 * MIB) copied += length;
      }
      CK(cudaStreamSynchronize(streams[0]));
      row(peer, name + (again ? " again" : ""), now_ns() - start);
      if (again) continue;
      row(peer, name + " copied MiB", double(copied) / MIB);
      printf("%s,%s peak reserved over length,%.4f\n", peer.c_str(), name.c_str(), double(before - free_memory()) / LONGEST);
      fflush(stdout);
    } catch (const std::exception& error) {
      printf("# %s, %s%s: %s\n", peer.c_str(), name.c_str(), again ? " again" : "", error.what());
    }
    CK(cudaDeviceSynchronize());
  }
}

static void multi_stream(const std::string& name, bool prewarm, int count, cudaKernel_t kernel) {
  auto vector = [](cudaStream_t s) { return std::make_unique<rmm::device_uvector<uint64_t>>(1, s); };
  if (prewarm) {
    std::vector<std::unique_ptr<rmm::device_uvector<uint64_t>>> held;
    for (int s = 0; s < count; ++s) held.push_back(vector(streams[s]));
  }
  CK(cudaDeviceSynchronize());
  const int iterations = 200;
  double t0 = now_ns();
  for (int i = 0; i < iterations; ++i) {
    for (int k = 0; k < 4; ++k) {
      cudaStream_t s = streams[k % count];
      rmm::device_uvector<uint64_t> v(1, s);
      spin(kernel, s, v.data());
    }
    CK(cudaDeviceSynchronize());
  }
  row(name, "multi stream " + std::to_string(count) + " streams 4 kernels" + (prewarm ? " prewarmed" : ""), (now_ns() - t0) / iterations);
}

int main(int argc, char** argv) {
  CK(cudaSetDevice(0));
  for (auto& s : streams) CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  cudaLibrary_t library; cudaKernel_t kernel;
  CK(cudaLibraryLoadData(&library, SPIN, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CK(cudaLibraryGetKernel(&kernel, library, "spin"));
  std::string which = argc > 1 ? argv[1] : "all";
  // `make` builds the resource anew and makes it current, as RMM's own benchmark does for each run.
  auto run = [&](const char* argument, const std::string& name, auto make) {
    if (which != argument && (which != "all" || argument == std::string("arena"))) return;
    // The registry keeps a handle of its own: without the reset, two would hold memory at once.
    auto with = [&](auto body) { { auto keep = make(); body(); } rmm::mr::reset_current_device_resource(); };
    if (argc < 3 || argv[2] != std::string("streams")) with([&] {
      for (int threads : {1, 16})
        row(name, "vector 1MiB " + std::to_string(threads) + " threads", median3([&] { return vectors(threads, 50000); }));
    });
    for (int count : {1, 2, 4})
      for (bool prewarm : {false, true}) with([&] { multi_stream(name, prewarm, count, kernel); });
  };
  using Pool = rmm::mr::pool_memory_resource;
  run("pool", "rmm pool", [] {
    auto pool = std::make_unique<Pool>(rmm::mr::cuda_memory_resource{}, rmm::percent_of_free_device_memory(50));
    rmm::mr::set_current_device_resource(*pool);
    return pool;
  });
  run("binning", "rmm binning", [] {
    Pool pool{rmm::mr::cuda_memory_resource{}, rmm::percent_of_free_device_memory(50)};
    auto bin = std::make_unique<rmm::mr::binning_memory_resource>(pool, 18, 22);
    rmm::mr::set_current_device_resource(*bin);
    return bin;
  });
  run("arena", "rmm arena", [] {
    auto arena = std::make_unique<rmm::mr::arena_memory_resource>(rmm::mr::cuda_memory_resource{});
    rmm::mr::set_current_device_resource(*arena);
    return arena;
  });
  run("async", "cudaMallocAsync", [] {
    auto async = std::make_unique<rmm::mr::cuda_async_memory_resource>();
    rmm::mr::set_current_device_resource(*async);
    return async;
  });
  if (argc > 2) return 0;
  if (which == "pool" || which == "all")
    growing("rmm pool", [] { return std::make_unique<Pool>(rmm::mr::cuda_memory_resource{}, 0); });
  if (which == "async" || which == "all")
    growing("cudaMallocAsync", [] { return std::make_unique<rmm::mr::cuda_async_memory_resource>(); });
  return 0;
}
