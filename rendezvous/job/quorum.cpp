// Kept apart from the job, so that the argument why two coordinators cannot both go on has one
// page.
#include "rendezvous/job/quorum.h"

#include <utility>

namespace ddprun::rendezvous {

void Quorum::round_closed(Council council) {
  // A round that was never settled leaves no trace: whoever knows of it needs the settled council's
  // majority as well.
  if (before_.empty()) before_ = std::move(council_);
  council_ = std::move(council);
  started_.clear();
}

bool Quorum::started(const std::string& node_id) {
  started_.insert(node_id);
  return settles();
}

bool Quorum::resigned(const std::string& node_id) {
  resigned_.insert(node_id);
  return settles();
}

// Each majority of the council before then has somebody who refuses a candidate that does not know
// this round.
bool Quorum::settles() {
  const auto knows_or_cannot_vote = [&](const std::string& id) {
    return started_.count(id) > 0 || resigned_.count(id) > 0;
  };
  if (before_.empty() || !has_majority(before_, knows_or_cannot_vote)) return false;
  before_.clear();
  return true;
}

bool Quorum::others_may_choose(const std::function<bool(const std::string& id)>& present) const {
  const Council& choosers = before_.empty() ? council_ : before_;
  return !choosers.empty() && has_majority(choosers, [&](const std::string& id) {
    return !present(id) && resigned_.count(id) == 0;
  });
}

}  // namespace ddprun::rendezvous
