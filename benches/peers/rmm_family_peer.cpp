// RMM's other resources, its adaptors over its pool, and its own benchmark programs: the rows that
// benches/family prints for Aquifer's. Arguments: fixed binning arena managed system async adaptors
// random uvector streams priming; all of them without one. `vectors` prints the hashes of
// tests/it/rmm_random.rs and needs no GPU.
#include "workloads.hpp"
#include "rmm_programs.hpp"
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <memory>
#include <rmm/cuda_device.hpp>
#include <rmm/cuda_stream.hpp>
#include <rmm/cuda_stream_pool.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/aligned_resource_adaptor.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/fixed_size_memory_resource.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/logging_resource_adaptor.hpp>
#include <rmm/mr/managed_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/mr/system_memory_resource.hpp>
#include <rmm/mr/tracking_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>
#include <unistd.h>

#define CK(x) do { auto e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)

static cudaStream_t streams[16];

struct RmmPeer {
  rmm::device_async_resource_ref mr;
  void* alloc(size_t n, int s) { return mr.allocate(cuda::stream_ref{streams[s]}, n, 256); }
  void free(void* p, size_t n, int s) { mr.deallocate(cuda::stream_ref{streams[s]}, p, n, 256); }
  void enter_thread() { cudaSetDevice(0); }
};

using Pool = rmm::mr::pool_memory_resource;

static size_t part(size_t parts) {
  size_t free = 0, total = 0;
  CK(cudaMemGetInfo(&free, &total));
  return (free / parts) & ~size_t{0xFFFFF};
}
static Pool pool_of(size_t parts) { return Pool{rmm::mr::cuda_memory_resource{}, part(parts)}; }

static void row(const std::string& name, const std::string& workload, double ns) {
  printf("%s,%s,%.1f\n", name.c_str(), workload.c_str(), ns);
  fflush(stdout);
}

static void hot_rows(const std::string& name, RmmPeer p, uint32_t pairs) {
  row(name, "hot 256B", median3([&] { return hot(p, 256, pairs); }));
  row(name, "hot 1MiB", median3([&] { return hot(p, 1 << 20, pairs); }));
}
static void random_row(const std::string& name, RmmPeer p) {
  auto ops = random_trace(1000, 1 << 20, 42);
  replay(p, ops, 1000, 0);
  row(name, "random n=1000 max=1MiB", median3([&] { return replay(p, ops, 1000, 0); }));
}

// As `churn`, but no longer than so many seconds: RMM's arena takes microseconds a thread and step.
static double bounded_churn(RmmPeer p, int threads, uint32_t steps, double seconds) {
  std::atomic<int> ready{0}, done{0};
  std::atomic<bool> go{false}, stop{false};
  std::atomic<uint64_t> made{0};
  std::vector<std::thread> ts;
  for (int t = 0; t < threads; ++t) ts.emplace_back([&, t] {
    p.enter_thread();
    SplitMix64 r{1234u + (uint64_t)t};
    std::vector<void*> ptr(128); std::vector<uint64_t> sz(128);
    for (int i = 0; i < 128; ++i) { sz[i] = log_size(r); ptr[i] = p.alloc(sz[i], t); }
    ready++; while (!go) std::this_thread::yield();
    uint32_t i = 0;
    for (; i < steps && !stop.load(std::memory_order_relaxed); ++i) {
      uint64_t k = r.below(128);
      p.free(ptr[k], sz[k], t); sz[k] = log_size(r); ptr[k] = p.alloc(sz[k], t);
    }
    made += i;
    done++; while (done < threads) std::this_thread::yield();
    for (int j = 0; j < 128; ++j) p.free(ptr[j], sz[j], t);
  });
  while (ready < threads) std::this_thread::yield();
  double t0 = now_ns(); go = true;
  while (done < threads) {
    if (now_ns() - t0 > seconds * 1e9) stop = true;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  double dt = now_ns() - t0;
  for (auto& t : ts) t.join();
  return dt / (2.0 * made);
}
static void churn_rows(const std::string& name, RmmPeer p, uint32_t steps, double seconds) {
  for (int t : {1, 16})
    row(name, "churn " + std::to_string(t) + " threads", median3([&] { return bounded_churn(p, t, steps, seconds); }));
}

// --- Adaptors: runs on the bare pool and behind the adaptor in turn ---
static double on_top(int rounds, uint32_t pairs, RmmPeer bare, RmmPeer adapted) {
  std::vector<double> more;
  for (int i = 0; i < rounds; ++i) {
    double without = hot(bare, 256, pairs);
    more.push_back((hot(adapted, 256, pairs) - without) / 2);
  }
  std::sort(more.begin(), more.end());
  return more[more.size() / 2];
}
static void sixteen(const std::string& name, RmmPeer p, double seconds) {
  row(name, "churn 16 threads adapted", median3([&] { return bounded_churn(p, 16, 20000, seconds); }));
}
static void adaptors() {
  Pool pool = pool_of(4);
  sixteen("rmm pool", {pool}, 0.5);
  {
    rmm::mr::statistics_resource_adaptor a{pool};
    row("rmm statistics", "on top 1 thread", on_top(51, 5000, {pool}, {a}));
    std::thread([&] { RmmPeer p{a}; p.enter_thread(); hot(p, 256, 1); }).join();
    row("rmm statistics", "on top 1 thread after a second", on_top(51, 5000, {pool}, {a}));
    sixteen("rmm statistics", {a}, 0.5);
  }
  {
    rmm::mr::limiting_resource_adaptor a{pool, size_t{1} << 46};
    row("rmm limiting", "on top 1 thread", on_top(51, 5000, {pool}, {a}));
    sixteen("rmm limiting", {a}, 0.5);
  }
  {
    rmm::mr::tracking_resource_adaptor a{pool};
    row("rmm tracking", "on top 1 thread", on_top(51, 5000, {pool}, {a}));
    sixteen("rmm tracking", {a}, 0.5);
  }
  {
    rmm::mr::tracking_resource_adaptor a{pool, true};
    row("rmm tracking with backtraces", "on top 1 thread", on_top(5, 500, {pool}, {a}));
  }
  {
    rmm::mr::aligned_resource_adaptor a{pool, 4096};
    row("rmm aligned", "on top 1 thread", on_top(51, 5000, {pool}, {a}));
  }
  {
    std::string path = "/tmp/rmm-family-" + std::to_string(getpid()) + ".csv";
    {
      rmm::mr::logging_resource_adaptor a{pool, path};
      // It has no queue: bursts and a long run cost the same, but for the file.
      row("rmm logging", "on top in bursts", on_top(11, 10000, {pool}, {a}));
      row("rmm logging", "on top sustained", on_top(3, 200000, {pool}, {a}));
    }
    std::remove(path.c_str());
  }
}

// --- RANDOM_ALLOCATIONS ---
// `most`: nothing of more allocations; `mib`: nothing larger.
static void random_rows(const std::string& name, RmmPeer p, uint32_t most, uint64_t most_mib, bool once = false) {
  for (uint32_t n : {1000u, 10000u, 100000u})
    for (uint64_t mib : {1, 4, 64, 256, 1024, 4096}) {
      if (n > most || mib > most_mib) continue;
      auto ops = rmm_trace(n, mib);
      auto run = [&] { return replay(p, ops, n, 0); };
      // The list of RMM's pool is as long as what is live: a row of ten seconds.
      bool slow = once || (n == 100000 && mib <= 4);
      if (!slow) run();
      row(name, "rmm random n=" + std::to_string(n) + " max=" + std::to_string(mib) + "MiB", slow ? run() : median3(run));
    }
}
static void random_programs() {
  { Pool pool = pool_of(2); random_rows("rmm pool", {pool}, 100000, 4096); }
  { Pool pool = pool_of(2); rmm::mr::binning_memory_resource b{pool, 18, 22}; random_rows("rmm binning", {b}, 100000, 4096); }
  { rmm::mr::arena_memory_resource a{rmm::mr::cuda_memory_resource{}, part(2)}; random_rows("rmm arena", {a}, 1000, 64); }
  { rmm::mr::cuda_async_memory_resource a; random_rows("rmm async", {a}, 1000, 64); }
  CK(cudaDeviceSynchronize());
  { rmm::mr::cuda_memory_resource c; random_rows("rmm plain", {c}, 1000, 64, true); }
}

// --- UVECTOR ---
// The kernel of benches/pool/kernels.rs.
static const char* SQUARE = R"(
.version 6.4
.target sm_50
.address_size 64
.visible .entry square(.param .u64 from, .param .u64 to, .param .u32 n) {
    .reg .pred %p; .reg .u32 %r<8>; .reg .u64 %rd<6>;
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [to];
    ld.param.u32 %r1, [n];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mov.u32 %r5, %nctaid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mul.lo.u32 %r5, %r5, %r3;
again:
    setp.ge.u32 %p, %r2, %r1;
    @%p bra done;
    mul.wide.u32 %rd3, %r2, 4;
    add.u64 %rd4, %rd1, %rd3;
    add.u64 %rd5, %rd2, %rd3;
    ld.global.u32 %r6, [%rd4];
    mul.lo.u32 %r7, %r6, %r6;
    st.global.u32 [%rd5], %r7;
    add.u32 %r2, %r2, %r5;
    bra again;
done:
    ret;
}
)";
using Vector = rmm::device_uvector<uint32_t>;

template <class F> static double timed(int count, F run) {
  double t0 = now_ns();
  for (int i = 0; i < count; ++i) run();
  return (now_ns() - t0) / count;
}
static void construction(const std::string& name, rmm::device_async_resource_ref mr) {
  for (uint64_t n = 10000; n <= 1000000000; n *= 10) {
    auto run = [&] { Vector v(n, cuda::stream_ref{cudaStream_t{nullptr}}, mr); CK(cudaDeviceSynchronize()); };
    row(name, "vector construction n=" + std::to_string(n), median3([&] { return timed(1000, run); }));
  }
}
static void workflow(const std::string& name, rmm::device_async_resource_ref mr, cudaKernel_t kernel) {
  cudaStream_t input = streams[0];
  for (uint32_t n = 100000; n <= 100000000; n *= 10) {
    auto run = [&] {
      Vector from(n, cuda::stream_ref{input}, mr);
      CK(cudaMemsetAsync(from.data(), 0, size_t{n} * 4, input));
      CK(cudaStreamSynchronize(input));
      for (int s = 1; s <= 4; ++s) {
        Vector to(n, cuda::stream_ref{streams[s]}, mr);
        uint32_t *a = from.data(), *b = to.data();
        void* arguments[] = {&a, &b, &n};
        CK(cudaLaunchKernel((const void*)kernel, dim3(16), dim3(256), arguments, 0, streams[s]));
      }
      for (int s = 1; s <= 4; ++s) CK(cudaStreamSynchronize(streams[s]));
    };
    run();
    row(name, "vector workflow n=" + std::to_string(n), median3([&] { return timed(20, run); }));
  }
}
static void uvector() {
  cudaLibrary_t library; cudaKernel_t kernel;
  CK(cudaLibraryLoadData(&library, SQUARE, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CK(cudaLibraryGetKernel(&kernel, library, "square"));
  { Pool pool = pool_of(2); construction("rmm pool", pool); workflow("rmm pool", pool, kernel); }
  { rmm::mr::cuda_async_memory_resource a; workflow("rmm async", a, kernel); CK(cudaDeviceSynchronize()); }
}

// --- CUDA_STREAM_POOL ---
static void stream_pool() {
  rmm::cuda_stream_pool pool;
  const std::string name = "rmm streams";
  volatile uintptr_t sink = 0;
  row(name, "stream pool get", median3([&] { return timed(1000000, [&] { sink = (uintptr_t)pool.get_stream().get(); }); }));
  row(name, "stream pool get and query", median3([&] { return timed(100000, [&] { cudaStreamQuery(pool.get_stream().get()); }); }));
  row(name, "stream create and destroy", median3([&] { return timed(1000, [] { rmm::cuda_stream s; }); }));
}

// --- ASYNC_PRIMING, of six tenths of the free memory, as benches/family/priming.rs says ---
template <class F> static void prime(const std::string& name, F make) {
  const size_t memory = part(10) * 6, bytes = memory / 1000 * 9;
  for (bool primed : {true, false}) {
    auto say = [&](const char* what, double ns) { row(name, std::string("priming ") + (primed ? "primed " : "unprimed ") + what, ns); };
    CK(cudaDeviceSynchronize());
    double t0 = now_ns();
    auto resource = make(primed ? memory / 2 : 0);
    say("construction", now_ns() - t0);
    RmmPeer p{*resource};
    std::vector<void*> blocks;
    auto allocate = [&](int count) {
      double begin = now_ns();
      for (int i = 0; i < count; ++i) blocks.push_back(p.alloc(bytes, 0));
      CK(cudaDeviceSynchronize());
      return (now_ns() - begin) / count;
    };
    auto free = [&] { for (void* b : blocks) p.free(b, bytes, 0); blocks.clear(); CK(cudaDeviceSynchronize()); };
    say("first", allocate(1));
    say("first round", allocate(99));
    free();
    say("second round", allocate(100));
    free();
  }
}
static void priming() {
  using Async = rmm::mr::cuda_async_memory_resource;
  prime("rmm async", [](size_t initial) { return initial ? std::make_unique<Async>(initial) : std::make_unique<Async>(); });
  prime("rmm pool", [](size_t initial) { return std::make_unique<Pool>(rmm::mr::cuda_memory_resource{}, initial); });
}

int main(int argc, char** argv) {
  std::string which = argc > 1 ? argv[1] : "all";
  if (which == "vectors") { print_rmm_vectors(); return 0; }
  CK(cudaSetDevice(0));
  for (auto& s : streams) CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  // One that throws must not take the others' rows with it.
  int failed = 0;
  auto on = [&](const char* name, auto run) {
    if (which != "all" && which != name) return;
    double t0 = now_ns();
    try { run(); } catch (std::exception const& e) { printf("# %s ended with %s\n", name, e.what()); failed = 1; }
    printf("# %s took %.1f s\n", name, (now_ns() - t0) / 1e9); fflush(stdout);
  };
  on("fixed", [] {
    { rmm::mr::fixed_size_memory_resource f{rmm::mr::cuda_memory_resource{}}; hot_rows("rmm fixed-size", {f}, 200000); random_row("rmm fixed-size", {f}); }
    rmm::mr::fixed_size_memory_resource f{rmm::mr::cuda_memory_resource{}, 4 << 20};
    churn_rows("rmm fixed-size", {f}, 50000, 1);
  });
  on("binning", [] {
    Pool pool = pool_of(2);
    rmm::mr::binning_memory_resource b{pool, 18, 22};
    hot_rows("rmm binning", {b}, 200000); random_row("rmm binning", {b}); churn_rows("rmm binning", {b}, 50000, 1);
  });
  on("arena", [] {
    rmm::mr::arena_memory_resource a{rmm::mr::cuda_memory_resource{}, part(2)};
    hot_rows("rmm arena", {a}, 20000); random_row("rmm arena", {a}); churn_rows("rmm arena", {a}, 50000, 1);
  });
  on("async", [] {
    rmm::mr::cuda_async_memory_resource a;
    hot_rows("rmm async", {a}, 50000); random_row("rmm async", {a}); churn_rows("rmm async", {a}, 5000, 1);
    CK(cudaDeviceSynchronize());
  });
  on("managed", [] { rmm::mr::managed_memory_resource m; hot_rows("rmm managed", {m}, 300); });
  on("system", [] {
    if (!rmm::mr::detail::is_system_memory_supported(rmm::cuda_device_id{0})) { printf("# no rmm system: kernels do not reach ordinary memory\n"); return; }
    rmm::mr::system_memory_resource s; hot_rows("rmm system", {s}, 300);
  });
  on("adaptors", adaptors);
  on("random", random_programs);
  on("uvector", uvector);
  on("streams", stream_pool);
  on("priming", priming);
  return failed;
}
