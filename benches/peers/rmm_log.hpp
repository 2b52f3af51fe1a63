// A log of RMM's columns (Thread,Time,Action,Pointer,Size,Stream), read and made ready, and threads
// that take turns at it. No CUDA in here.
#pragma once
#include "workloads.hpp"
#include <barrier>
#include <exception>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <unordered_map>

// What aquifer-replay's `Plan` is: every free knows its allocation, and each has a slot of its own.
struct Log {
  struct Step { uint32_t thread, stream, slot; bool allocates; };
  struct Slot { uint64_t size; uint32_t stream; };  // the stream that it is allocated on
  std::string name;
  std::vector<Step> steps;
  std::vector<Slot> slots;
  std::vector<std::string> streams;
  uint32_t threads = 0;
  uint64_t peak_live = 0;
};

inline uint64_t log_number(const std::string& text) {
  if (text == "(nil)") return 0;
  size_t end = 0;
  if (text.empty() || text[0] < '0' || text[0] > '9') throw std::runtime_error("no number: " + text);
  uint64_t value = std::stoull(text, &end, text.rfind("0x", 0) == 0 ? 16 : 10);
  if (end != text.size()) throw std::runtime_error("no number: " + text);
  return value;
}

// RMM's own program takes every stream for the default one: its parser reads decimals, and a log has
// 0x... and names. Here they are told apart, as aquifer-replay tells them.
inline std::string log_stream(const std::string& text, const std::string& thread) {
  uint64_t handle = 0;
  if (text.empty()) throw std::runtime_error("no stream");
  if (text[0] >= '0' && text[0] <= '9') handle = log_number(text);
  else if (text.starts_with("per-thread")) handle = 2;
  else if (!text.starts_with("default") && !text.starts_with("legacy")) return text;
  return handle < 2 ? "default" : handle == 2 ? "per-thread/" + thread : std::to_string(handle);
}

inline Log read_log(const std::string& path) {
  std::ifstream file(path);
  Log log;
  log.name = path.substr(path.rfind('/') + 1);
  log.name = log.name.substr(0, log.name.rfind('.'));
  std::string line;
  auto next = [&] {
    if (!std::getline(file, line)) return false;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return true;
  };
  if (!next() || line != "Thread,Time,Action,Pointer,Size,Stream") throw std::runtime_error(path + ": no log of RMM");
  std::map<std::string, uint32_t> threads, streams;
  std::unordered_map<uint64_t, uint32_t> live;  // by address, the slot
  uint64_t used = 0;
  for (uint64_t number = 2; next(); ++number) try {
    if (line.empty()) continue;
    std::vector<std::string> cells;
    std::stringstream all(line);
    for (std::string cell; std::getline(all, cell, ',');) cells.push_back(cell);
    if (cells.size() != 6) throw std::runtime_error("six columns are wanted");
    // An allocation that failed when the log was written is left out, as RMM's program leaves it.
    if (cells[2] == "allocate failure" || cells[2] == "failure") continue;
    bool allocates = cells[2] == "allocate";
    if (!allocates && cells[2] != "free") throw std::runtime_error("no action: " + cells[2]);
    uint64_t address = log_number(cells[3]), size = log_number(cells[4]);
    if (allocates ? size == 0 : address == 0) continue;
    uint32_t thread = threads.try_emplace(cells[0], threads.size()).first->second;
    auto [stream, is_new] = streams.try_emplace(log_stream(cells[5], cells[0]), streams.size());
    if (is_new) log.streams.push_back(stream->first);
    uint32_t slot = log.slots.size();
    if (allocates) {
      if (!live.try_emplace(address, slot).second) throw std::runtime_error("allocated twice");
      log.slots.push_back({size, stream->second});
      log.peak_live = std::max(log.peak_live, used += size);
    } else {
      auto found = live.find(address);
      if (found == live.end()) throw std::runtime_error("freed, and was not allocated");
      slot = found->second;
      used -= log.slots[slot].size;
      live.erase(found);
    }
    log.steps.push_back({thread, stream->second, slot, allocates});
  } catch (std::exception const& e) {
    throw std::runtime_error(path + ":" + std::to_string(number) + ": " + e.what());
  }
  if (log.steps.empty()) throw std::runtime_error(path + ": nothing to replay");
  log.threads = threads.size();
  return log;
}

inline void pause_a_little() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

struct Took { double calls, wall; };  // ns an operation

// How often a thread looks for its turn before it sleeps, where each has a core: replay/src/turns.rs's.
constexpr int SPINS = 20000;

// Makes the log's calls in its order, each on a thread of its own for each of the log's. A turn ends where
// the log's next event is another thread's, and is passed as aquifer-replay passes it: both sides have
// one engine. RMM's own program hands over after each event, by a mutex and a condition variable that
// wakes all. Addresses are looked up beforehand, and not in the time as there. `calls` is the time in the
// turns, `wall` from the first event to the last.
template <class P> Took replay_log(const Log& log, P& p) {
  struct Run { size_t first, last; };
  size_t count = 0;
  std::vector<std::vector<std::pair<size_t, Run>>> own(log.threads);  // by thread: number and steps
  for (size_t at = 0, end; at < log.steps.size(); at = end) {
    uint32_t thread = log.steps[at].thread;
    for (end = at + 1; end < log.steps.size() && log.steps[end].thread == thread;) ++end;
    own[thread].push_back({count++, {at, end}});
  }
  std::vector<void*> blocks(log.slots.size());
  constexpr size_t BROKEN = ~size_t{0};
  std::atomic<size_t> now{0};
  const int spins = log.threads <= std::thread::hardware_concurrency() ? SPINS : 0;
  double calls = 0, begun = 0, finished = 0;
  std::exception_ptr broken;
  auto make = [&](Run run) {
    for (size_t at = run.first; at < run.last; ++at) {
      auto& step = log.steps[at];
      auto& slot = log.slots[step.slot];
      if (step.allocates) { blocks[step.slot] = p.alloc(slot.size, step.stream); continue; }
      // The program that wrote the log had ordered its streams somehow.
      if (step.stream != slot.stream) p.wait(step.stream, slot.stream);
      p.free(blocks[step.slot], slot.size, step.stream);
      blocks[step.slot] = nullptr;
    }
  };
  std::barrier start(log.threads);
  std::vector<std::thread> workers;
  for (uint32_t t = 0; t < log.threads; ++t) workers.emplace_back([&, t] {
    p.enter_thread();
    start.arrive_and_wait();
    for (auto& [number, run] : own[t]) {
      size_t seen;
      for (int left = spins; (seen = now.load(std::memory_order_acquire)) != number;) {
        if (seen == BROKEN) return;
        if (left-- > 0) pause_a_little();
        else now.wait(seen, std::memory_order_acquire);
      }
      double begin = now_ns();
      if (number == 0) begun = begin;
      try { make(run); } catch (...) { broken = std::current_exception(); }
      finished = now_ns();
      calls += finished - begin;
      // The others would wait for ever.
      now.store(broken ? BROKEN : number + 1, std::memory_order_release);
      now.notify_all();
    }
  });
  for (auto& worker : workers) worker.join();
  // What the log leaks.
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i]) p.free(blocks[i], log.slots[i].size, log.slots[i].stream);
  if (broken) std::rethrow_exception(broken);
  return {calls / log.steps.size(), (finished - begun) / log.steps.size()};
}
