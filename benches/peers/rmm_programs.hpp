// The operations of RMM's RANDOM_ALLOCATIONS, drawn from libstdc++ as RMM's program draws them.
// benches/family/generator.rs makes the same.
#pragma once
#include "workloads.hpp"
#include <cinttypes>
#include <random>

inline std::vector<Op> rmm_trace(uint32_t n, uint64_t mib) {
  const uint64_t max_usage = 16000ull << 20;
  std::default_random_engine engine;
  std::uniform_int_distribution<std::size_t> size_of(1, mib << 20);
  std::uniform_int_distribution<int> chance_of(0, 99);
  std::uniform_int_distribution<std::size_t> index_of(0, n - 1);
  std::vector<Op> ops;
  std::vector<std::pair<uint32_t, uint64_t>> live;
  uint64_t used = 0; uint32_t count = 0;
  for (uint32_t i = 0; i < 2 * n; ++i) {
    uint64_t size = size_of(engine);
    bool allocates = true;
    if (!live.empty()) { int chance = chance_of(engine); allocates = chance < 73 && count < n && used + size < max_usage; }
    if (allocates) { ops.push_back({count, size}); live.push_back({count, size}); ++count; used += size; }
    else {
      uint64_t k = index_of(engine) % live.size();
      ops.push_back({live[k].first, 0}); used -= live[k].second;
      live[k] = live.back(); live.pop_back();
    }
  }
  for (auto& l : live) ops.push_back({l.first, 0});
  return ops;
}

// What tests/it/rmm_random.rs holds the Rust to.
inline void print_rmm_vectors() {
  for (auto [n, mib] : {std::pair<uint32_t, uint64_t>{1000, 1}, {1000, 4}, {1000, 64}, {1000, 256}, {1000, 1024}, {1000, 4096},
                        {10000, 1}, {10000, 4096}, {100000, 1}, {100000, 4096}}) {
    uint64_t hash = 1469598103934665603ull, used = 0, peak = 0, live = 0, most = 0;
    std::vector<uint64_t> sizes(n);
    for (auto& op : rmm_trace(n, mib)) {
      if (op.size) { sizes[op.slot] = op.size; used += op.size; ++live; }
      else { used -= sizes[op.slot]; --live; }
      peak = std::max(peak, used); most = std::max(most, live);
      hash = (hash ^ (op.size ? op.size : ~uint64_t{op.slot})) * 1099511628211ull;
    }
    printf("n=%u max=%" PRIu64 "MiB peak %" PRIu64 " bytes %" PRIu64 " blocks hash 0x%016" PRIx64 "\n", n, mib, peak, most, hash);
  }
}
