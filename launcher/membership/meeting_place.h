// This node's dealings with the etcd where the job's nodes meet: the calls and the clock around
// rendezvous::EtcdMeeting.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "launcher/membership/calls_in_turn.h"
#include "rendezvous/arbiter/etcd_meeting.h"

namespace ddprun::launcher {

struct MeetingLimits {
  std::chrono::milliseconds interval{1'000};  // Between two looks.
  std::chrono::milliseconds answer{8'000};    // Of one call, which is up to four requests.
};

// Lives on the agent's io_context, in its thread; callbacks come from there.
class MeetingPlace {
 public:
  struct Seen {
    std::string why;  // "": etcd has answered.
    std::optional<rendezvous::Leader> leader;
    std::string local_address;  // As EtcdMeeting has it.
  };

  // `io` must outlive it. `name`: of etcd, for messages.
  MeetingPlace(asio::io_context& io, std::shared_ptr<rendezvous::EtcdMeeting> meeting,
               std::string name, const MeetingLimits& limits);

  void look(std::function<void(const Seen& seen)> done);
  void put(const rendezvous::Leader& self,
           std::function<void(bool put, const std::string& why)> done);

  // From here on this node's key is there, as far as etcd is: `on_other` hears whom it has replaced
  // and to whom this node has to give way. Again for another term.
  using OnOther = std::function<void(rendezvous::Upkeep what, const rendezvous::Leader& other)>;
  void keep(const rendezvous::Leader& self, OnOther on_other);
  void stop();  // The key lapses, or another node replaces it.
  // As stop(), and removes the key at once if it was kept.
  void leave(std::function<void(const std::string& why)> done);

 private:
  void keep_once();
  void kept(const rendezvous::Leader& self, const rendezvous::EtcdMeeting::Kept& kept,
            const std::string& why);

  std::shared_ptr<rendezvous::EtcdMeeting> meeting_;
  MeetingLimits limits_;
  CallsInTurn calls_;
  std::optional<rendezvous::Leader> self_;  // While its key is kept.
  bool keeping_ = false;                    // That is among the calls.
  OnOther on_other_;
  asio::steady_timer timer_;
  bool away_said_ = false;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace ddprun::launcher
