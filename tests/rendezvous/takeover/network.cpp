// A line's delay is drawn when it is sent, and its place kept when it comes: TCP may be late, and
// never out of order.
#include "tests/rendezvous/takeover/network.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace ddprun::simulation {

Network::Network(Schedule& schedule, Chance& chance, Read read)
    : schedule_(schedule), chance_(chance), read_(std::move(read)) {}

Milliseconds Network::delay() {
  return chance_.one_in(12) ? Milliseconds(1 + static_cast<int>(chance_.below(250)))
                            : Milliseconds(static_cast<int>(chance_.below(4)));
}

void Network::cut(int from_machine, int to_machine, Schedule::TimePoint until) {
  auto& now =
      cut_until_[static_cast<std::size_t>(from_machine)][static_cast<std::size_t>(to_machine)];
  now = std::max(now, until);
}

Schedule::TimePoint Network::cut_until(int from_process, int to_process) const {
  return cut_until_[static_cast<std::size_t>(machine_of(from_process))]
                   [static_cast<std::size_t>(machine_of(to_process))];
}

bool Network::is_cut(int from_process, int to_process) const {
  return cut_until(from_process, to_process) > schedule_.now();
}

bool Network::joins(int process, int other) const {
  return !is_cut(process, other) && !is_cut(other, process);
}

int Network::connect(int client, int server, rendezvous::PeerId peer) {
  connections_.push_back({.client = client, .server = server, .peer = peer});
  return static_cast<int>(connections_.size()) - 1;
}

void Network::send(int connection, Way way, Line line) {
  Connection& through = (*this)[connection];
  (way == Way::Up ? through.up : through.down).push_back(std::move(line));
  const int from = way == Way::Up ? through.client : through.server;
  const int to = way == Way::Up ? through.server : through.client;
  const Milliseconds late = machine_of(from) == machine_of(to) ? Milliseconds(0) : delay();
  schedule_.after(late, to, [this, connection, way] { deliver(connection, way); });
}

// Each event takes the first line that is there: whatever the delays are, lines keep their order.
void Network::deliver(int connection, Way way) {
  Connection& through = (*this)[connection];
  const int from = way == Way::Up ? through.client : through.server;
  const int to = way == Way::Up ? through.server : through.client;
  if (is_cut(from, to)) {
    return schedule_.at(cut_until(from, to) + delay(), to,
                        [this, connection, way] { deliver(connection, way); });
  }
  auto& lines = way == Way::Up ? through.up : through.down;
  Line line = std::move(lines.front());
  lines.pop_front();
  const bool closed = way == Way::Up ? through.server_closed : through.client_closed;
  if (!closed) read_(connection, way, std::move(line));
}

void Network::reset(int process) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i].client != process && connections_[i].server != process) continue;
    send_end(static_cast<int>(i), Way::Up);
    send_end(static_cast<int>(i), Way::Down);
  }
}

void Network::close_all(int process) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const Connection& connection = connections_[i];
    if (connection.client == process && !connection.client_closed)
      send_end(static_cast<int>(i), Way::Up);
    if (connection.server == process && !connection.server_closed)
      send_end(static_cast<int>(i), Way::Down);
  }
}

void Network::power_returns(int machine) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const Connection& connection = connections_[i];
    if (machine_of(connection.client) == machine) send_end(static_cast<int>(i), Way::Up);
    if (machine_of(connection.server) == machine) send_end(static_cast<int>(i), Way::Down);
  }
}

}  // namespace ddprun::simulation
