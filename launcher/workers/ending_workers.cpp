// A process can be reaped only when its memory is free, and its session is nobody else's until
// then.
#include "launcher/workers/ending_workers.h"

#include <algorithm>
#include <utility>

namespace ddprun::launcher {

void EndingWorkers::add(Process process) {
  process->channel.reset();
  output_.pump(*process->stream);
  processes_.push_back(std::move(process));
}

bool EndingWorkers::has(const Process& process) const {
  return std::find(processes_.begin(), processes_.end(), process) != processes_.end();
}

void EndingWorkers::reap(ChildGuard& guard) {
  std::erase_if(processes_, [&](const Process& process) {
    if (!process->take_status()) return false;
    process->close();
    output_.drain(*process->stream);
    process->stream.reset();
    guard.remove_session(process->child.pid());
    return true;
  });
}

std::vector<int> EndingWorkers::pids() const {
  std::vector<int> pids;
  for (const Process& process : processes_) pids.push_back(process->child.pid());
  return pids;
}

}  // namespace ddprun::launcher
