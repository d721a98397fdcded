// Each event is one function; what has to be true after all of them stands in finish_if_done().
#include "launcher/hosts/hosts_state.h"

#include <algorithm>
#include <csignal>

namespace ddprun::launcher {
namespace {

using What = HostsAct::What;

}  // namespace

bool HostsState::all(Node state) const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [&](const Place& place) { return place.state == state; });
}

// Told nodes wait for each other, and for nobody else: none is started twice.
bool HostsState::can_begin() const {
  const auto left = std::count_if(nodes_.begin(), nodes_.end(),
                                  [](const Place& place) { return place.state != Node::Ended; });
  return left >= (limits_.least > 0 ? limits_.least : static_cast<std::ptrdiff_t>(nodes_.size()));
}

bool HostsState::has_room() const {
  return std::count_if(nodes_.begin(), nodes_.end(), [](const Place& place) {
           return place.state == Node::Starting;
         }) < limits_.at_once;
}

void HostsState::start_some(TimePoint now, HostsStep& step) {
  for (std::size_t i = 0; i < nodes_.size() && has_room(); ++i) {
    Place& place = nodes_[i];
    if (place.state != Node::Waiting || now < place.not_before) continue;
    place.state = Node::Starting;
    place.since = now;
    step.acts.push_back({What::Start, static_cast<int>(i)});
  }
}

std::chrono::milliseconds pause_of_turned_away(int host, int times) {
  return std::chrono::milliseconds{500 + (97 * host + 131 * times) % 500};
}

std::optional<HostsStep> HostsState::turned_away(int node, TimePoint now) {
  Place& place = nodes_[static_cast<std::size_t>(node)];
  if (phase_ != Phase::Starting || place.state != Node::Starting) return std::nullopt;
  if (++place.turned_away >= limits_.tries) return std::nullopt;
  place.state = Node::Waiting;
  place.not_before = now + pause_of_turned_away(node, place.turned_away);
  limits_.at_once = std::min(limits_.at_once, limits_.at_once_where_short);
  HostsStep step{{}, "an sshd has too many logins at once: the node is started again later"};
  start_some(now, step);
  return step;
}

void HostsState::kill_all(HostsStep& step) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state == Node::Waiting) nodes_[i].state = Node::Ended;
    if (nodes_[i].state != Node::Ended) step.acts.push_back({What::Kill, static_cast<int>(i)});
  }
}

void HostsState::give_up(int signal, HostsStep& step) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const int node = static_cast<int>(i);
    if (nodes_[i].state == Node::Waiting) nodes_[i].state = Node::Ended;
    if (nodes_[i].state == Node::Told) {
      step.acts.push_back({What::Signal, node, signal});
    } else if (nodes_[i].state != Node::Ended) {
      step.acts.push_back({What::Kill, node});
    }
  }
}

HostsStep HostsState::finish_if_done(HostsStep step) {
  if (phase_ != Phase::Done && all(Node::Ended)) {
    phase_ = Phase::Done;
    step.acts.push_back({What::Finish});
  }
  return step;
}

HostsStep HostsState::begin(TimePoint now) {
  HostsStep step{{}, "the nodes are started"};
  start_some(now, step);
  return step;
}

HostsStep HostsState::hello(int node, TimePoint now) {
  Place& place = nodes_[static_cast<std::size_t>(node)];
  if (phase_ != Phase::Starting || place.state != Node::Starting) {
    return {{}, "a hello that nobody waits for"};
  }
  place.state = Node::Ready;
  HostsStep step{{}, "a node is there"};
  start_some(now, step);
  if (!all(Node::Ready)) return step;
  phase_ = Phase::Opening;
  until_ = now + limits_.opening;
  nodes_[0].state = Node::Told;
  return {{{What::Tell, 0}}, "all nodes are there: node 0 opens the endpoint"};
}

HostsStep HostsState::opened() {
  if (phase_ != Phase::Opening) return {{}, "the endpoint is open already"};
  phase_ = Phase::Running;
  HostsStep step{{}, "the endpoint is open: the other nodes are told where"};
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    nodes_[i].state = Node::Told;
    step.acts.push_back({What::Tell, static_cast<int>(i)});
  }
  return step;
}

HostsStep HostsState::begun() {
  begun_ = true;
  return {{}, "a round has begun: from here on the coordinator hears of what is lost"};
}

HostsStep HostsState::ended(int node, Verdict verdict, TimePoint now) {
  Place& place = nodes_[static_cast<std::size_t>(node)];
  place.state = Node::Ended;
  HostsStep step{{}, "a node has ended"};
  if (phase_ == Phase::Starting || phase_ == Phase::Opening) {
    step.reason = "a node has ended before the job began: the others are ended";
    preventer_ = node;
    give_up(SIGTERM, step);
    begin_to_end(now, limits_.ending);
  } else if (phase_ == Phase::Running && !begun_ && !can_begin()) {
    // The coordinator does not know of a node that never came, and would wait for it. No workers
    // have to be stopped.
    step.reason = "a node has ended before the first round: the others would wait for it";
    preventer_ = node;
    give_up(SIGTERM, step);
    begin_to_end(now, limits_.killing);
  } else if (phase_ == Phase::Running && verdict == Verdict::None && !limits_.elastic &&
             !limits_.stay) {
    // The coordinator hears of it from its own connection, and ends the job; this is for the case
    // that nobody is left who could.
    step.reason = "a node was lost: the others have to end within the limit";
    begin_to_end(now, limits_.ending);
  } else if (phase_ == Phase::Running && verdict == Verdict::Failure && !limits_.elastic) {
    // All are told of it at the same time; this is for a launcher that hangs where ssh still
    // answers. Not after a success: what the others have to do for it may take any time.
    step.reason = "a node tells a failure: the others have to end within the limit";
    begin_to_end(now, limits_.ending);
  }
  return finish_if_done(std::move(step));
}

HostsStep HostsState::refuse(const std::string& why, TimePoint now) {
  HostsStep step{{}, why};
  give_up(SIGTERM, step);
  begin_to_end(now, limits_.ending);
  return finish_if_done(std::move(step));
}

HostsStep HostsState::signal(int signal, TimePoint now) {
  signalled_ = true;
  const bool ends_now = signal == SIGINT || signal == SIGQUIT;
  if (ends_now) ++interrupts_;
  if (interrupts_ > 2) {
    HostsStep step{{}, "a third one: the connections are ended"};
    kill_all(step);
    return finish_if_done(std::move(step));
  }
  HostsStep step{{}, "a signal is passed on"};
  give_up(signal, step);
  begin_to_end(now, interrupts_ > 1 ? limits_.killing : limits_.ending);
  return finish_if_done(std::move(step));
}

std::optional<HostsState::TimePoint> HostsState::deadline() const {
  if (phase_ == Phase::Opening || phase_ == Phase::Ending) return until_;
  if (phase_ != Phase::Starting) return std::nullopt;
  std::optional<TimePoint> first;
  const bool room = has_room();
  for (const Place& place : nodes_) {
    const bool is_next = room && place.state == Node::Waiting;
    if (place.state != Node::Starting && !is_next) continue;
    const TimePoint at = is_next ? place.not_before : place.since + limits_.hello;
    if (!first || at < *first) first = at;
  }
  return first;
}

HostsStep HostsState::deadline_passed(TimePoint now) {
  HostsStep step{{}, "nothing is late"};
  if (phase_ == Phase::Starting) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].state != Node::Starting || now < nodes_[i].since + limits_.hello) continue;
      late_.push_back({static_cast<int>(i), phase_});
    }
    if (late_.empty()) {
      start_some(now, step);
      if (!step.acts.empty()) step.reason = "nodes that were turned away are started again";
      return step;
    }
    step.reason = "a node has not said hello in time: all are ended";
    give_up(SIGTERM, step);
    begin_to_end(now, limits_.killing);
  } else if (phase_ == Phase::Opening && now >= until_) {
    step.reason = "node 0 has not opened the endpoint in time: all are ended";
    late_.push_back({0, phase_});
    kill_all(step);
    begin_to_end(now, limits_.killing);
  } else if (phase_ == Phase::Ending && now >= until_) {
    step.reason = "who has not ended by now is cut off";
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].state != Node::Ended) late_.push_back({static_cast<int>(i), phase_});
    }
    kill_all(step);
    until_ = now + limits_.killing;
  }
  return finish_if_done(std::move(step));
}

// A node that has ended but for its output stands still with the reader, who may take any time
// (a pager). A signal asks for an end of that as well (output/last_output.h).
HostsStep HostsState::output_waited(TimePoint now) {
  if (phase_ != Phase::Ending || !begun_ || signalled_) return {{}, "it holds up no limit"};
  until_ = now + limits_.ending;
  return {{}, "the limit begins anew: nodes stand still for whoever reads our output"};
}

}  // namespace ddprun::launcher
