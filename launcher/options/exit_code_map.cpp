// The names are of what has happened, as docs/failures.md tells it.
#include "launcher/options/exit_code_map.h"

#include <algorithm>
#include <array>

#include "launcher/options/values.h"

namespace ddprun::launcher {
namespace {

namespace exit_status = rendezvous::exit_status;

struct OwnStatus {
  const char* name;
  int status;
};
// Not 2, which is known before any option is.
constexpr std::array own_statuses = {OwnStatus{"unfit", exit_status::unfit},
                                     OwnStatus{"internal", exit_status::internal},
                                     OwnStatus{"timeout", exit_status::rendezvous_timeout},
                                     OwnStatus{"coordinator", exit_status::coordinator_lost},
                                     OwnStatus{"refused", exit_status::refused},
                                     OwnStatus{"lost", exit_status::node_lost},
                                     OwnStatus{"preempted", exit_status::preempted}};

std::string names_of_statuses() {
  std::string text;
  for (const OwnStatus& own : own_statuses)
    text += (text.empty() ? "" : ", ") + std::string(own.name);
  return text;
}

}  // namespace

std::map<int, int> parse_exit_code_map(const GivenOption& given) {
  std::map<int, int> map;
  if (given.value.empty()) return map;
  for (std::size_t begin = 0; begin <= given.value.size();) {
    const std::size_t end = std::min(given.value.find(',', begin), given.value.size());
    const std::string entry = given.value.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = std::min(entry.find('='), entry.size());
    const std::string name = entry.substr(0, equals);
    const auto own = std::find_if(own_statuses.begin(), own_statuses.end(),
                                  [&](const OwnStatus& status) { return status.name == name; });
    if (own == own_statuses.end() || equals == entry.size()) {
      throw usage_error(given.source + ": expected NAME=NUMBER,... with the names " +
                        names_of_statuses() + "; \"" + entry + "\" is none");
    }
    // 0 would make a success of a failure.
    map[own->status] = parse_count({entry.substr(equals + 1), given.source}, 1, 255);
  }
  return map;
}

int mapped_exit_status(const std::map<int, int>& map, int status,
                       const std::optional<rendezvous::FirstCause>& cause) {
  const auto found = map.find(status);
  if (found == map.end()) return status;
  const bool workers = cause && cause->kind == rendezvous::FirstCause::Kind::WorkerFailed &&
                       cause->signal == 0 && cause->exit_code == status &&
                       !rendezvous::asks_to_be_queued_again(*cause);
  return workers ? status : found->second;
}

}  // namespace ddprun::launcher
