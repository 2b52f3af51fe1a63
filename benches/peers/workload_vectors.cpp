// Prints the vectors of tests/it/bench_workloads.rs: g++ -std=c++20 -O2 workload_vectors.cpp -lpthread
#include "workloads.hpp"
#include <cinttypes>

struct Hash {
  uint64_t h = 1469598103934665603ull;
  void add(uint64_t word) { h = (h ^ word) * 1099511628211ull; }
};

int main() {
  for (uint64_t mib : {1, 64, 1024, 4096})
    for (uint32_t n : {1000u, 100000u}) {
      auto ops = random_trace(n, mib << 20, 42);
      Hash hash;
      std::vector<uint64_t> sizes(n);
      uint64_t live = 0, peak = 0;
      for (auto& o : ops) {
        hash.add(o.slot); hash.add(o.size);
        if (o.size) live += sizes[o.slot] = o.size; else live -= sizes[o.slot];
        peak = std::max(peak, live);
      }
      printf("random n=%u max=%" PRIu64 "MiB: %zu operations, hash 0x%016" PRIx64 ", peak %" PRIu64 ", sizes", n, mib, ops.size(), hash.h, peak);
      for (int i = 0; i < 6; ++i) printf(" %" PRIu64, ops[i].size);
      puts("");
    }
  for (uint64_t thread = 0; thread < 16; ++thread) {
    SplitMix64 r{1234u + thread};
    Hash hash;
    uint64_t first[4];
    for (int i = 0; i < 128; ++i) { uint64_t size = log_size(r); if (i < 4) first[i] = size; hash.add(size); }
    for (int i = 0; i < 50000; ++i) { hash.add(r.below(128)); hash.add(log_size(r)); }
    printf("churn thread %" PRIu64 ": %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 ", hash 0x%016" PRIx64 "\n", thread, first[0], first[1], first[2], first[3], hash.h);
  }
}
