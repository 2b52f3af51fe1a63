// Plays the programs that `cargo bench --bench pool -- --traces FOLDER` writes (benches/pool/traffic.rs
// says what their lines are), with the same work in flight, and the churn of workloads.hpp with work.
#pragma once
#include "workloads.hpp"
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fstream>
#include <sstream>

#define CK(x) do { auto e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)

struct Traffic {
  struct Step { char what; uint32_t one, two; uint64_t bytes; };
  std::string name;
  std::vector<Step> steps;
  std::vector<std::pair<uint64_t, uint32_t>> blocks;  // by slot: bytes and stream
  uint32_t streams = 0;
  uint64_t peak = 0;
};

inline Traffic read_traffic(const std::string& path) {
  Traffic t;
  t.name = path.substr(path.rfind('/') + 1);
  t.name = t.name.substr(0, t.name.rfind('.'));
  std::ifstream file(path);
  uint64_t live = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream cells(line);
    Traffic::Step s{0, 0, 0, 0};
    cells >> s.what >> s.one;
    if (s.what == 'a') {
      cells >> s.two >> s.bytes;
      t.blocks.resize(std::max<size_t>(t.blocks.size(), s.one + 1));
      t.blocks[s.one] = {s.bytes, s.two};
      t.peak = std::max(t.peak, live += s.bytes);
    } else if (s.what == 'f') {
      cells >> s.two;
      live -= t.blocks.at(s.one).first;
    } else if (s.what == 'o') cells >> s.two;
    if (!cells) { fprintf(stderr, "%s: no step: %s\n", path.c_str(), line.c_str()); exit(1); }
    t.streams = std::max({t.streams, s.what == 'a' || s.what == 'f' ? 0 : s.one + 1, s.what == 'k' || s.what == 'w' ? 0 : s.two + 1});
    t.steps.push_back(s);
  }
  if (t.steps.empty()) { fprintf(stderr, "%s: nothing to play\n", path.c_str()); exit(1); }
  return t;
}

// The kernel of benches/pool/kernels.rs that keeps a stream busy. From the driver's own library, so
// that the program needs no nvcc.
class Delay {
  using Load = int (*)(void**, const void*);
  using Find = int (*)(void**, void*, const char*);
  using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cudaStream_t, void**, void**);
  Launch launch;
  void* kernel = nullptr;
  static constexpr const char* TEXT = R"(
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry delay(.param .u64 duration) {
        .reg .pred %p; .reg .u64 %rd<4>;
        ld.param.u64 %rd1, [duration];
        mov.u64 %rd2, %globaltimer;
        add.u64 %rd1, %rd1, %rd2;
    again:
        mov.u64 %rd3, %globaltimer;
        setp.lt.u64 %p, %rd3, %rd1;
        @%p bra again;
        ret;
    })";
 public:
  Delay() {
    CK(cudaFree(0));
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    void* module = nullptr;
    if (!driver || reinterpret_cast<Load>(dlsym(driver, "cuModuleLoadData"))(&module, TEXT) ||
        reinterpret_cast<Find>(dlsym(driver, "cuModuleGetFunction"))(&kernel, module, "delay")) {
      fprintf(stderr, "the kernel of the work cannot be loaded\n");
      exit(1);
    }
    launch = reinterpret_cast<Launch>(dlsym(driver, "cuLaunchKernel"));
  }
  void operator()(cudaStream_t stream, uint64_t ns) const {
    void* arguments[] = {&ns};
    if (launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr)) { fprintf(stderr, "no launch\n"); exit(1); }
  }
};

struct Streams {
  std::vector<cudaStream_t> all;
  explicit Streams(size_t count) : all(count) { for (auto& s : all) CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); }
  ~Streams() { for (auto s : all) cudaStreamDestroy(s); }
};

constexpr uint64_t WORK_NS = 10000, CHURN_WORK_NS = 50000, CHURN_WORK_EVERY = 8;

inline void footprint_rows(const std::string& peer, const std::string& name, uint64_t live, uint64_t reserved) {
  auto row = [&](const char* what, double value) { printf("%s,%s %s,%.4f\n", peer.c_str(), name.c_str(), what, value); };
  row("peak live MiB", live / 1048576.0);
  row("peak reserved MiB", reserved / 1048576.0);
  row("peak reserved over peak live", double(reserved) / double(live));
  fflush(stdout);
}

// `P` has `Block alloc(bytes, stream)`, `free(Block&, bytes, stream it was made on, stream)` and
// `reserved()`, the most bytes that it ever held. Nanoseconds of the host a step.
template <class P> double play(P& p, const Traffic& t, const Streams& streams, const Delay& delay) {
  std::vector<typename P::Block> blocks(t.blocks.size());
  cudaEvent_t event;
  CK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  double start = now_ns();
  for (auto& s : t.steps) switch (s.what) {
    case 'a': blocks[s.one] = p.alloc(s.bytes, streams.all[s.two]); break;
    case 'f': {
      auto& [bytes, made_on] = t.blocks[s.one];
      p.free(blocks[s.one], bytes, streams.all[made_on], streams.all[s.two]);
      break;
    }
    case 'o':
      CK(cudaEventRecord(event, streams.all[s.two]));
      CK(cudaStreamWaitEvent(streams.all[s.one], event, 0));
      break;
    case 'k': delay(streams.all[s.one], WORK_NS); break;
    case 'w': CK(cudaStreamSynchronize(streams.all[s.one])); break;
    default: fprintf(stderr, "no step: %c\n", s.what); exit(1);
  }
  double time = (now_ns() - start) / t.steps.size();
  CK(cudaDeviceSynchronize());
  CK(cudaEventDestroy(event));
  return time;
}

// `churn` with work in flight, counting what is live as benches/pool/footprint.rs does.
template <class P> struct Counted {
  P& p;
  const Streams& streams;
  const Delay& delay;
  std::atomic<uint64_t> live{0}, peak{0};
  uint64_t made[16 * 8] = {};
  struct Kept { typename P::Block block; int stream; };
  void* alloc(uint64_t bytes, int s) {
    auto* kept = new Kept{p.alloc(bytes, streams.all[s]), s};
    uint64_t now = live.fetch_add(bytes) + bytes, most = peak.load();
    while (now > most && !peak.compare_exchange_weak(most, now)) {}
    if (made[s * 8]++ % CHURN_WORK_EVERY == 0) delay(streams.all[s], CHURN_WORK_NS);
    return kept;
  }
  void free(void* q, uint64_t bytes, int) {
    auto* kept = static_cast<Kept*>(q);
    live -= bytes;
    p.free(kept->block, bytes, streams.all[kept->stream], streams.all[kept->stream]);
    delete kept;
  }
  void enter_thread() { CK(cudaSetDevice(0)); }
};

// `fresh` calls what it is given with an empty pool.
template <class Fresh> void run_traffic(const std::string& peer, int files, char** paths, Fresh fresh) {
  Delay delay;
  {
    Streams streams{16};
    fresh([&](auto& p) {
      Counted<std::remove_reference_t<decltype(p)>> counted{p, streams, delay};
      churn(counted, 16, 50000);
      CK(cudaDeviceSynchronize());
      footprint_rows(peer, "churn 16 threads", counted.peak, p.reserved());
    });
  }
  for (int i = 0; i < files; ++i) {
    Traffic t = read_traffic(paths[i]);
    Streams streams{t.streams};
    fresh([&](auto& p) {
      double time = play(p, t, streams, delay);
      printf("%s,%s host time,%.1f\n", peer.c_str(), t.name.c_str(), time);
      footprint_rows(peer, t.name, t.peak, p.reserved());
    });
  }
}
