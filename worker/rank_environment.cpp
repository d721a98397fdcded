// Into this process's environment, from where everything else reads a rank; but for the marks,
// which belong to the kernel.
#include "worker/rank_environment.h"

#include <sys/sem.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "rendezvous/parse_number.h"
#include "worker/worker_env.h"

namespace ddprun::worker {
namespace {

// Best effort, as for workers that the launcher starts with them: without them it tells who died
// first by when it heard of the deaths.
void take_death_marks(const std::string& text) {
  const auto set = rendezvous::read_death_marks(text);
  if (!set || set->marks.empty()) return;
  std::vector<sembuf> operations;
  for (const auto& mark : set->marks) {
    operations.push_back({mark.semaphore, mark.value, SEM_UNDO});
  }
  ::semop(set->id, operations.data(), operations.size());
}

}  // namespace

void take_environment(const rendezvous::Environment& environment) {
  for (const auto& [name, value] : environment) {
    if (name == rendezvous::death_marks_variable) {
      take_death_marks(value);
    } else {
      ::setenv(name.c_str(), value.c_str(), /*replace=*/1);
    }
  }
}

int descriptor_of(const char* variable) {
  const std::string text = environment_variable(variable).value_or("");
  return rendezvous::parse_number<int>(text).value_or(-1);
}

}  // namespace ddprun::worker
