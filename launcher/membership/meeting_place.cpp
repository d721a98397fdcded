// Every call goes out with copies of all that it needs: it may still be under way when this object,
// and the agent, are gone.
#include "launcher/membership/meeting_place.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace ddprun::launcher {

using rendezvous::Leader;
using rendezvous::Upkeep;

MeetingPlace::MeetingPlace(asio::io_context& io, std::shared_ptr<rendezvous::EtcdMeeting> meeting,
                           std::string name, const MeetingLimits& limits)
    : meeting_(std::move(meeting)),
      limits_(limits),
      calls_(io, std::move(name), limits.answer),
      timer_(io) {}

void MeetingPlace::look(std::function<void(const Seen& seen)> done) {
  const auto seen = std::make_shared<Seen>();
  calls_.add(
      [meeting = meeting_, seen] {
        seen->leader = meeting->look();
        seen->local_address = meeting->local_address();
      },
      [seen, done = std::move(done)](const std::string& why) {
        // A call that did not end in time may write there yet.
        done(why.empty() ? *seen : Seen{.why = why, .leader = {}, .local_address = {}});
      });
}

void MeetingPlace::put(const Leader& self,
                       std::function<void(bool put, const std::string& why)> done) {
  const auto was_put = std::make_shared<bool>(false);
  calls_.add([meeting = meeting_, self, was_put] { *was_put = meeting->put(self); },
             [was_put, done = std::move(done)](const std::string& why) {
               done(why.empty() && *was_put, why);
             });
}

void MeetingPlace::keep(const Leader& self, OnOther on_other) {
  self_ = self;
  on_other_ = std::move(on_other);
  if (!keeping_) keep_once();
}

void MeetingPlace::keep_once() {
  timer_.cancel();
  keeping_ = true;
  const auto result = std::make_shared<rendezvous::EtcdMeeting::Kept>();
  calls_.add([meeting = meeting_, self = *self_, result] { *result = meeting->keep(self); },
             [this, self = *self_, result](const std::string& why) {
               keeping_ = false;
               if (self_) kept(self, why.empty() ? *result : rendezvous::EtcdMeeting::Kept{}, why);
             });
}

void MeetingPlace::kept(const Leader& self, const rendezvous::EtcdMeeting::Kept& kept,
                        const std::string& why) {
  if (!why.empty() && !away_said_) {
    spdlog::warn("new nodes do not find the job as long as this lasts: {}", why);
  }
  away_said_ = !why.empty();
  if (self != *self_) return keep_once();
  timer_.expires_after(limits_.interval);
  timer_.async_wait([this, weak = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (weak.lock() && !error && self_ && !keeping_) keep_once();
  });
  const bool met = kept.what == Upkeep::Replace || kept.what == Upkeep::GiveWay;
  if (met && kept.named->seat.node_id != self.seat.node_id) on_other_(kept.what, *kept.named);
}

void MeetingPlace::stop() {
  self_.reset();
  timer_.cancel();
}

void MeetingPlace::leave(std::function<void(const std::string& why)> done) {
  if (!self_) return done("");
  const Leader self = *self_;
  stop();
  calls_.add([meeting = meeting_, self] { meeting->remove(self); }, std::move(done));
}

}  // namespace ddprun::launcher
