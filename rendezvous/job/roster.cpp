// A vector, since join order is what ranks are given by; a job has at most a few thousand nodes,
// and each look at one of them is paid by a message over a network.
#include "rendezvous/job/roster.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace ddprun::rendezvous {

Roster::Node& Roster::add(PeerId peer, const Hello& hello, const Liveness& liveness) {
  assert(find(peer) == nullptr);
  nodes_.push_back({peer, hello, liveness});
  // Erased: one id makes one agent a founder, however often it is said.
  if (founder_ids_.erase(hello.replaces) > 0) make_founder(nodes_.back());
  return nodes_.back();
}

std::optional<Roster::Node> Roster::remove(PeerId peer) {
  const Node* node = find(peer);
  if (node == nullptr) return std::nullopt;
  const Node removed = *node;
  nodes_.erase(nodes_.begin() + (node - nodes_.data()));
  return removed;
}

void Roster::inherit(const Succession& last, Milliseconds timeout, TimePoint now) {
  assert(nodes_.empty());
  for (int group_rank = 0; group_rank < last.nodes; ++group_rank) {
    Hello hello;
    hello.host = "of the last round";  // Beyond the council nothing is known of it.
    bool founder = true;               // Until it says otherwise: its loss is the job's.
    for (const Seat& seat : last.council) {
      if (seat.group_rank != group_rank) continue;
      hello.node_id = seat.node_id;
      hello.host = seat.host;
      founder = seat.founder;
    }
    if (std::count(last.resigned.begin(), last.resigned.end(), hello.node_id) > 0) continue;
    const PeerId nobody = std::numeric_limits<PeerId>::max() - static_cast<PeerId>(group_rank);
    Node& node = nodes_.emplace_back(Node{nobody, hello, Liveness(timeout, now)});
    node.part = Part::Running;
    node.group_rank = group_rank;
    node.started = node.taken_in = node.absent = true;
    node.founder = founder;
  }
}

Roster::Node* Roster::come_back(PeerId peer, const Hello& hello, Milliseconds timeout,
                                TimePoint now) {
  assert(hello.resumes && find(peer) == nullptr);
  const auto is_it = [&](const Node& node) {
    return node.absent && node.group_rank == hello.resumes->group_rank &&
           (node.hello.node_id.empty() || node.hello.node_id == hello.node_id);
  };
  const auto node = std::find_if(nodes_.begin(), nodes_.end(), is_it);
  if (node == nodes_.end()) return nullptr;
  node->peer = peer;
  node->hello = hello;
  node->absent = false;
  node->liveness = Liveness(timeout, now);
  node->founder = hello.resumes->founder;
  if (node->founder) remember_founder(hello.node_id);
  return &*node;
}

void Roster::attempt_begins() {
  for (Node& node : nodes_) {
    node.part = Part::Idle;
    node.group_rank = -1;
    node.started = false;
  }
}

void Roster::make_founder(Node& node) {
  node.founder = true;
  founder_ids_.insert(node.hello.node_id);
}

Roster::Node* Roster::find(PeerId peer) {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const Node& node) { return node.peer == peer; });
  return found == nodes_.end() ? nullptr : &*found;
}

const Roster::Node* Roster::with_id(const std::string& node_id) const {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const Node& node) { return node.hello.node_id == node_id; });
  return found == nodes_.end() ? nullptr : &*found;
}

bool Roster::any(Part part) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const Node& node) { return node.part == part; });
}

bool Roster::any_has_workers() const { return any(Part::Running) || any(Part::Succeeded); }

bool Roster::has_place(int nodes_max) const {
  const auto running = std::count_if(nodes_.begin(), nodes_.end(),
                                     [](const Node& node) { return node.part == Part::Running; });
  return !any(Part::Succeeded) && running < nodes_max;
}

std::vector<PeerId> Roster::members() const {
  std::vector<PeerId> peers;
  for (const Node& node : nodes_) {
    if (node.part != Part::Idle) peers.push_back(node.peer);
  }
  return peers;
}

}  // namespace ddprun::rendezvous
