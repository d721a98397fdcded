// An answer counts when it is whole: half of a JSON object tells nothing.
#include "rendezvous/job/gathering.h"

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {

Gathering::Gathering(int number, std::vector<NodeTold> nodes, const Late& late)
    : number_(number), nodes_(std::move(nodes)), answers_(nodes_.size()) {
  // Those in no round come last.
  std::stable_sort(nodes_.begin(), nodes_.end(), [](const NodeTold& a, const NodeTold& b) {
    return static_cast<unsigned>(a.group_rank) < static_cast<unsigned>(b.group_rank);
  });
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].is_own || !nodes_[i].tells) continue;
    answers_[i].state = Answer::State::Open;
    answers_[i].awaited =
        std::find(late.peers.begin(), late.peers.end(), nodes_[i].peer) == late.peers.end();
  }
}

std::vector<PeerId> Gathering::to_ask() const {
  std::vector<PeerId> peers;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (answers_[i].state == Answer::State::Open) peers.push_back(nodes_[i].peer);
  }
  return peers;
}

void Gathering::hear(PeerId peer, const Told& piece) {
  if (piece.number != number_) return;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Answer& answer = answers_[i];
    if (nodes_[i].peer != peer || answer.state != Answer::State::Open) continue;
    bytes_ += piece.text.size();
    if (answer.text.size() + piece.text.size() > node_bytes_max || bytes_ > total_bytes_max) {
      answer.state = Answer::State::TooLong;
      bytes_ -= answer.text.size() + piece.text.size();
      answer.text = {};
      return;
    }
    answer.text += piece.text;
    if (piece.more) return;
    answer.state = Answer::State::Whole;
    nodes_[i].text = std::move(answer.text);
    nodes_[i].silence = {};
  }
}

void Gathering::gone(PeerId peer) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].peer == peer && answers_[i].state == Answer::State::Open) {
      answers_[i].state = Answer::State::Gone;
    }
  }
}

bool Gathering::complete() const {
  return std::none_of(answers_.begin(), answers_.end(), [](const Answer& answer) {
    return answer.state == Answer::State::Open && answer.awaited;
  });
}

Gathering::Late Gathering::late() const {
  Late late;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (answers_[i].state == Answer::State::Open) late.peers.push_back(nodes_[i].peer);
  }
  return late;
}

}  // namespace ddprun::rendezvous
