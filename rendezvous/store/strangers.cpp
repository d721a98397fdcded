// Three views of one list: in the order they came, by number, and by host.
#include "rendezvous/store/strangers.h"

#include <cassert>

namespace ddprun::rendezvous {

std::optional<Strangers::Id> Strangers::add(Id id, const std::string& host, TimePoint now) {
  assert(by_id_.count(id) == 0);
  std::optional<Id> goes;
  const auto same_host = by_host_.find(host);
  if (same_host != by_host_.end() && same_host->second.size() >= limits_.per_host_max) {
    goes = by_age_.at(*same_host->second.begin()).id;
  } else if (by_age_.size() >= limits_.total_max) {
    goes = by_age_.begin()->second.id;
  }
  if (goes) remove(*goes);
  const std::uint64_t age = next_++;
  by_age_.emplace(age, Entry{id, host, now});
  by_id_.emplace(id, age);
  by_host_[host].insert(age);
  return goes;
}

void Strangers::remove(Id id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  const auto entry = by_age_.find(found->second);
  const auto host = by_host_.find(entry->second.host);
  host->second.erase(found->second);
  if (host->second.empty()) by_host_.erase(host);
  by_age_.erase(entry);
  by_id_.erase(found);
}

void Strangers::note_refused(const std::string& host, TimePoint now) {
  if (refused_.size() >= refused_hosts_max && refused_.count(host) == 0) refused_.clear();
  Refused& refused = refused_[host];
  if (refused.times == 0 || now - refused.since >= limits_.refused_time) refused = {now, 0};
  ++refused.times;
}

std::chrono::milliseconds Strangers::pause(const std::string& host, TimePoint now) const {
  const auto refused = refused_.find(host);
  const bool waits = refused != refused_.end() &&
                     refused->second.times >= limits_.refused_at_once &&
                     now - refused->second.since < limits_.refused_time;
  if (!waits) return std::chrono::milliseconds{0};
  const auto since_last = now.time_since_epoch() % limits_.pause;
  return std::chrono::ceil<std::chrono::milliseconds>(limits_.pause - since_last);
}

std::vector<Strangers::Id> Strangers::take_due(TimePoint now) {
  std::vector<Id> due;
  while (!by_age_.empty() && by_age_.begin()->second.came + limits_.time_max <= now) {
    due.push_back(by_age_.begin()->second.id);
    remove(due.back());
  }
  return due;
}

std::optional<Strangers::TimePoint> Strangers::deadline() const {
  if (by_age_.empty()) return std::nullopt;
  return by_age_.begin()->second.came + limits_.time_max;
}

}  // namespace ddprun::rendezvous
