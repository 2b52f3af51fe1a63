// RMM's REPLAY: the rows that replay/benches/replay.rs prints for Aquifer's, of the same logs. Arguments:
// one of pool binning arena async cuda managed, then logs of RMM's columns; the rows have the logs'
// names. `plan LOG ...` prints what is read from them and needs no GPU.
//
// Of each log three figures, medians of three rounds (one of cuda and managed, as there), each round on
// a new resource, which has nothing yet, as there (only the arena takes its memory first):
//   replay NAME                          the calls alone, whose turns end where ours do. With them are
//                                        a table of blocks and two readings of the clock for all that a
//                                        thread does in a row, as in ours.
//   replay NAME with handing over        from the first event to the last, on the engine that ours has
//                                        too: an atomic, for which threads that have a core each spin
//                                        a little before they sleep.
//   replay NAME synchronized on default  as before, by the calls that RMM's program makes:
//                                        `allocate_sync`, on the default stream whatever the log says,
//                                        which waits for that stream each time; one round. Ours has
//                                        no such row.
#include "rmm_log.hpp"
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <functional>
#include <rmm/cuda_device.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/managed_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/resource_ref.hpp>

#define CK(x) do { auto e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)

// The streams of a log; the event orders a free behind its allocation's stream.
struct Streams {
  std::vector<cudaStream_t> all;
  cudaEvent_t event;
  explicit Streams(const Log& log) {
    for (auto& name : log.streams) {
      cudaStream_t stream = nullptr;
      if (name != "default") CK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      all.push_back(stream);
    }
    CK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  ~Streams() {
    for (auto stream : all) if (stream) CK(cudaStreamDestroy(stream));
    CK(cudaEventDestroy(event));
  }
};

struct StreamPeer {
  rmm::device_async_resource_ref mr;
  Streams& streams;
  void* alloc(size_t n, int s) { return mr.allocate(cuda::stream_ref{streams.all[s]}, n, 256); }
  void free(void* p, size_t n, int s) { mr.deallocate(cuda::stream_ref{streams.all[s]}, p, n, 256); }
  void wait(int s, int before) {
    CK(cudaEventRecord(streams.event, streams.all[before]));
    CK(cudaStreamWaitEvent(streams.all[s], streams.event, 0));
  }
  void enter_thread() { CK(cudaSetDevice(0)); }
};
struct SyncPeer {
  rmm::device_async_resource_ref mr;
  void* alloc(size_t n, int) { return mr.allocate_sync(n, 256); }
  void free(void* p, size_t n, int) { mr.deallocate_sync(p, n, 256); }
  void wait(int, int) {}
  void enter_thread() { CK(cudaSetDevice(0)); }
};

using Round = std::function<double(rmm::device_async_resource_ref)>;
using Fresh = std::function<double(Round)>;  // a round on a new resource

static double median(int rounds, const std::function<double()>& round) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) { times.push_back(round()); CK(cudaDeviceSynchronize()); }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}
static void rows(const std::string& peer, int rounds, const Log& log, const Fresh& fresh) {
  auto row = [&](const char* what, int rounds, const Round& round) {
    double ns = median(rounds, [&] { return fresh(round); });
    printf("%s,replay %s%s,%.1f\n", peer.c_str(), log.name.c_str(), what, ns);
    fflush(stdout);
  };
  Streams streams{log};
  row("", rounds, [&](auto mr) { StreamPeer p{mr, streams}; return replay_log(log, p).calls; });
  row(" with handing over", rounds, [&](auto mr) { StreamPeer p{mr, streams}; return replay_log(log, p).wall; });
  row(" synchronized on default", 1, [&](auto mr) { SyncPeer p{mr}; return replay_log(log, p).wall; });
}

using Cuda = rmm::mr::cuda_memory_resource;
using Pool = rmm::mr::pool_memory_resource;

static void run(const std::string& which, const Log& log) {
  if (which == "pool") rows("rmm pool", 3, log, [](Round round) { Pool pool{Cuda{}, 0}; return round(pool); });
  else if (which == "binning") rows("rmm binning", 3, log, [](Round round) {
    Pool pool{Cuda{}, 0};
    rmm::mr::binning_memory_resource b{pool, 18, 22};
    return round(b);
  });
  else if (which == "arena") rows("rmm arena", 3, log, [](Round round) {
    // Half of what is free, as ours takes.
    size_t free = 0, total = 0;
    CK(cudaMemGetInfo(&free, &total));
    rmm::mr::arena_memory_resource a{Cuda{}, (free / 2) & ~size_t{0xFFFFF}};
    return round(a);
  });
  else if (which == "async") rows("rmm async", 3, log, [](Round round) {
    rmm::mr::cuda_async_memory_resource a;
    double ns = round(a);
    CK(cudaDeviceSynchronize());
    return ns;
  });
  else if (which == "cuda") rows("rmm plain", 1, log, [](Round round) { Cuda c; return round(c); });
  else if (which == "managed") rows("rmm managed", 1, log, [](Round round) { rmm::mr::managed_memory_resource m; return round(m); });
  else throw std::runtime_error("no resource: " + which);
}

int main(int argc, char** argv) {
  if (argc < 3) { fprintf(stderr, "rmm_replay_peer pool|binning|arena|async|cuda|managed|plan LOG ...\n"); return 2; }
  const std::string which = argv[1];
  try {
    for (int i = 2; i < argc; ++i) {
      Log log = read_log(argv[i]);
      if (which == "plan")
        printf("%s: operations %zu threads %u streams %zu peak_live_of_log %llu\n", log.name.c_str(), log.steps.size(),
               log.threads, log.streams.size(), (unsigned long long)log.peak_live);
      else {
        CK(cudaSetDevice(0));
        double t0 = now_ns();
        run(which, log);
        printf("# %s of %s took %.1f s\n", which.c_str(), log.name.c_str(), (now_ns() - t0) / 1e9);
        fflush(stdout);
      }
    }
  } catch (std::exception const& e) {
    printf("# replay on %s ended with %s\n", which.c_str(), e.what());
    return 1;
  }
}
