// Each change wants the key to be as it was seen: who looks and who writes are never one step.
#include "rendezvous/arbiter/etcd_meeting.h"

#include <fmt/format.h>

#include "rendezvous/arbiter/claim_text.h"
#include "rendezvous/control/visible_text.h"

namespace ddprun::rendezvous {

std::optional<std::string> EtcdMeeting::text_there() {
  EtcdResult seen = client_.run(EtcdTransaction().read(key_));
  const auto found = seen.values.find(key_);
  if (found == seen.values.end()) return {};
  return std::move(found->second);
}

Leader EtcdMeeting::parse(const std::string& text) const {
  const auto claim = parse_claim(text);
  if (!claim) {
    throw ArbiterError(fmt::format("{}: the key {} names no coordinator but {}", client_.name(),
                                   key_, visible_text(text, Lines::Escape)));
  }
  return {.seat = claim->holder, .term = claim->term};
}

std::string EtcdMeeting::text_of(const Leader& leader) const {
  return claim_text({.holder = leader.seat, .term = leader.term, .kept = true}, run_id_, "", {},
                    "");
}

std::optional<Leader> EtcdMeeting::look() {
  const auto text = text_there();
  if (!text) return {};
  return parse(*text);
}

void EtcdMeeting::renew() {
  if (lease_ == 0 || !client_.keep_alive(lease_)) lease_ = client_.grant(lasts_);
}

bool EtcdMeeting::put(const Leader& self) {
  renew();
  const std::string text = text_of(self);
  if (client_.run(EtcdTransaction().if_absent(key_).put(key_, text, lease_)).held) return true;
  return text_there() == text;  // The answer to an earlier try may have been lost.
}

EtcdMeeting::Kept EtcdMeeting::keep(const Leader& self) {
  const std::int64_t lease_before = lease_;
  renew();
  const auto text = text_there();
  std::optional<Leader> named;
  if (text) named = parse(*text);
  const Upkeep decided = decide_upkeep(named, self);
  // A key of an earlier lease goes with that one.
  const bool own_again = decided == Upkeep::Nothing && lease_ != lease_before;
  EtcdTransaction change;
  if (decided == Upkeep::Put) {
    client_.run(change.if_absent(key_).put(key_, text_of(self), lease_));
  } else if (decided == Upkeep::Replace || own_again) {
    client_.run(change.if_value(key_, *text).put(key_, text_of(self), lease_));
  }
  return {.what = decided, .named = std::move(named)};
}

void EtcdMeeting::remove(const Leader& self) {
  client_.run(EtcdTransaction().if_value(key_, text_of(self)).remove(key_));
  if (lease_ != 0) client_.revoke(lease_);
  lease_ = 0;
}

}  // namespace ddprun::rendezvous
