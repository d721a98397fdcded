// One question to all nodes of the job, and what they have said to it so far.
//
// Nobody is waited for who cannot answer, nor who has not answered the last time: whoever looks at
// a job with a dead node should not wait for that node at each look. What a node may send is
// bounded, and so is what all may together. A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/control/liveness.h"
#include "rendezvous/job/roster.h"

namespace ddprun::rendezvous {

// A node as its coordinator knows it, and its answer.
struct NodeTold {
  PeerId peer = 0;
  std::string host;
  std::string address;  // With `port`: where it would coordinate the job; 0: nowhere.
  int port = 0;
  int group_rank = -1;              // -1: in no round.
  bool is_own = false;              // The coordinator's own; it is not asked.
  bool tells = false;               // Its ddprun answers at all.
  TimePoint::duration silence{};    // Since it was heard last.
  std::optional<std::string> text;  // Nothing: no answer (yet).
};

class Gathering {
 public:
  static constexpr std::size_t node_bytes_max = 512u << 10;
  static constexpr std::size_t total_bytes_max = 16u << 20;

  struct Late {  // Who did not answer the question before.
    std::vector<PeerId> peers;
  };
  Gathering(int number, std::vector<NodeTold> nodes, const Late& late);

  int number() const { return number_; }
  std::vector<PeerId> to_ask() const;
  void hear(PeerId peer, const Told& piece);  // Others' and unasked ones are passed over.
  void gone(PeerId peer);
  bool complete() const;  // Nobody is waited for any more.

  Late late() const;
  const std::vector<NodeTold>& nodes() const { return nodes_; }  // In the order of ranks.

 private:
  struct Answer {
    enum class State { Unasked, Open, Whole, TooLong, Gone } state = State::Unasked;
    bool awaited = false;
    std::string text;
  };

  int number_;
  std::vector<NodeTold> nodes_;
  std::vector<Answer> answers_;  // Of the same order.
  std::size_t bytes_ = 0;
};

}  // namespace ddprun::rendezvous
