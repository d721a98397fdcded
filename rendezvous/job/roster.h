// The nodes that have joined the job, in join order, and what part each has in the attempt.
//
// The first attempt's nodes are its founders: the job is theirs, and one that was cut off and comes
// back with a new connection is a founder still. So the roster remembers their ids (random, so that
// nobody else can say one) when they have gone.
// A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/control/liveness.h"

namespace ddprun::rendezvous {

using PeerId = std::uint64_t;  // A control connection, numbered by the shell, never used twice.

class Roster {
 public:
  enum class Part {
    Idle,       // Waits for a round, or is a spare.
    Running,    // Has workers of this attempt.
    Succeeded,  // All its workers of this attempt exited with 0.
    Reaped,     // Stopped; has no workers any more.
  };

  struct Node {
    PeerId peer = 0;
    Hello hello;
    Liveness liveness;
    Part part = Part::Idle;
    int group_rank = -1;
    bool leaving = false;                   // Said so; takes part in no further round.
    bool founder = false;                   // Of the first attempt, or an agent that was.
    bool taken_in = false;                  // The others stopped for it, or it was a member.
    bool departed = false;                  // Was counted as a newcomer that went.
    bool started = false;                   // Has said so in this attempt.
    bool absent = false;                    // Inherited, and not back yet.
    std::optional<TimePoint> member_since;  // The first attempt that it took part in began then.

    // Another attempt would meet them: they hold GPUs and ports.
    bool has_workers() const { return part == Part::Running || part == Part::Succeeded; }
  };

  // Invalidates references and pointers to nodes, as remove() does.
  Node& add(PeerId peer, const Hello& hello, const Liveness& liveness);
  std::optional<Node> remove(PeerId peer);  // Nothing: it is not here (any more).

  // The members of a round that another coordinator, which is gone, had closed, without those that
  // it knew to have resigned. Each has `timeout` to come back; until then its peer is a number that
  // no connection has.
  void inherit(const Succession& last, Milliseconds timeout, TimePoint now);
  // The absent member that says so; null: it is none, or another round's.
  Node* come_back(PeerId peer, const Hello& hello, Milliseconds timeout, TimePoint now);
  // A stranger may say any id: beyond as many as a job can have nodes, none is remembered.
  void remember_founder(const std::string& node_id) {
    if (founder_ids_.size() < nodes_limit) founder_ids_.insert(node_id);
  }

  void attempt_begins();          // Nobody has a part yet.
  void make_founder(Node& node);  // It is in the first attempt.

  Node* find(PeerId peer);
  const Node* with_id(const std::string& node_id) const;
  bool any(Part part) const;
  bool any_has_workers() const;
  // Whether another node could enlarge the attempt: nobody is done, and fewer than `nodes_max` run.
  bool has_place(int nodes_max) const;
  // Who was given a place in this attempt, also when its workers have gone since.
  std::vector<PeerId> members() const;

  std::size_t size() const { return nodes_.size(); }
  Node& operator[](std::size_t index) { return nodes_[index]; }
  const Node& operator[](std::size_t index) const { return nodes_[index]; }
  auto begin() { return nodes_.begin(); }
  auto end() { return nodes_.end(); }
  auto begin() const { return nodes_.begin(); }
  auto end() const { return nodes_.end(); }

 private:
  std::vector<Node> nodes_;
  std::set<std::string> founder_ids_;
};

}  // namespace ddprun::rendezvous
