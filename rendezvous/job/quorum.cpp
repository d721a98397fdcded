// Kept apart from the job, so that the argument why two coordinators cannot both go on has one
// page.
#include "rendezvous/job/quorum.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ddprun::rendezvous {

void Quorum::round_closed(Council council, RoundName round) {
  // A round that was never settled leaves no trace: whoever knows of it needs the settled council's
  // majority as well.
  if (before_.empty()) {
    before_ = std::move(council_);
    before_round_ = round_;
  }
  council_ = std::move(council);
  round_ = round;
  started_.clear();
}

bool Quorum::started(const std::string& node_id) {
  started_.insert(node_id);
  return settles();
}

bool Quorum::resigned(const std::string& node_id) {
  // Anybody may name an id; one without a seat had no vote that it could give up.
  const bool is_news = has_seat(node_id) && resigned_.insert(node_id).second;
  return settles() || is_news;
}

std::vector<std::string> Quorum::resigned() const {
  std::vector<std::string> ids;
  std::copy_if(resigned_.begin(), resigned_.end(), std::back_inserter(ids),
               [&](const std::string& id) { return has_seat(id); });
  return ids;
}

bool Quorum::has_seat(const std::string& node_id) const {
  const auto is_it = [&](const std::string& id) { return id == node_id; };
  return count_in(council_, is_it) + count_in(before_, is_it) > 0;
}

// Each set that could choose in ignorance of this round has somebody who refuses a candidate that
// does not know it. Where the word is ours for ever, the sets that need it are none any more.
bool Quorum::settles() {
  const std::size_t refuse = count_in(before_, [&](const std::string& id) {
    return started_.count(id) > 0 || resigned_.count(id) > 0;
  });
  const std::size_t enough = kept_.count(before_round_) > 0
                                 ? enough_with_word(before_, arbitration_)
                                 : enough_alone(before_, arbitration_);
  if (before_.empty() || refuse < enough) return false;
  before_.clear();
  return true;
}

Quorum::Verdict Quorum::verdict(const std::function<bool(const std::string& id)>& present) const {
  const Council& choosers_council = before_.empty() ? council_ : before_;
  if (choosers_council.empty()) return Verdict::Leads;
  const std::size_t absent = count_in(choosers_council, [&](const std::string& id) {
    return !present(id) && resigned_.count(id) == 0;
  });
  if (absent >= enough_alone(choosers_council, arbitration_)) return Verdict::MustEnd;
  const bool some = absent >= enough_with_word(choosers_council, arbitration_);
  return some && !ours(choosers()) ? Verdict::NeedsWord : Verdict::Leads;
}

void Quorum::word_given(const std::vector<RoundName>& rounds) {
  for (const RoundName& round : rounds) {
    if (kept_.count(round) == 0) given_.insert(round);
  }
}

bool Quorum::word_kept() {
  kept_.merge(given_);
  given_.clear();
  return settles();
}

}  // namespace ddprun::rendezvous
