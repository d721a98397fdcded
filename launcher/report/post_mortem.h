// What the kernel knows of a dead worker: whether it was ended because memory ran out, its cgroup's
// limit and peak, and where its core dump is.
//
// Reads files only (/proc, the cgroup file systems); their texts are taken apart in
// kernel_records.h. Everything is best effort: what cannot be read is not known.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include "launcher/report/kernel_records.h"
#include "launcher/workers/worker_end.h"

namespace ddprun::launcher {

struct KernelFacts {
  bool oom_killed = false;
  std::int64_t memory_limit_bytes = 0;  // 0 = none, or not known; only when oom_killed.
  std::int64_t memory_peak_bytes = 0;
  std::string core;  // Path, or how to get at it; "" = none that is known.
};

class PostMortem {
 public:
  // `root` is put before every path; tests give a folder that looks like / to us.
  explicit PostMortem(std::string root = "");

  // Call when an attempt starts, before its workers: OOM kills are counted from here on. Workers
  // are in the launcher's cgroup.
  void attempt_starts();

  // Right after a worker was reaped.
  KernelFacts examine(const WorkerEnd& death) const;

 private:
  std::optional<std::int64_t> oom_kills() const;
  void add_memory(KernelFacts& facts) const;
  std::string core_of(const WorkerEnd& death) const;
  std::string read(const std::string& path) const;

  std::string root_;
  MemoryCgroup cgroup_;
  std::optional<std::int64_t> kills_at_start_;
  std::time_t started_at_ = 0;  // A core dump that is older belongs to somebody else.
};

}  // namespace ddprun::launcher
