// A line of /proc/PID/stat, which is "PID (name) state ...": the name may hold spaces and
// parentheses. A core: what is read comes from process_file.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun::launcher {

class ProcessStat {
 public:
  // Nothing when it is no such line.
  static std::optional<ProcessStat> parse(const std::string& text);

  const std::string& name() const { return name_; }
  char state() const { return rest_.front(); }
  // Counted as in proc(5), where the state is field 3; nothing when there is none.
  std::optional<long long> number(int field) const;

 private:
  ProcessStat(std::string name, std::string rest)
      : name_(std::move(name)), rest_(std::move(rest)) {}

  std::string name_;
  std::string rest_;  // From the state on.
};

// Nothing when there is no such process, or thread (any more).
std::optional<ProcessStat> read_process_stat(int pid);

}  // namespace ddprun::launcher
