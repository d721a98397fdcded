// The network between simulated processes: connections that keep the order of their lines, with
// delays of which few are long, directions that can be cut, and machines that lose their power
// without a word. It knows lines and places, not what is said.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/job/job.h"
#include "tests/rendezvous/takeover/chance.h"
#include "tests/rendezvous/takeover/round_history.h"
#include "tests/rendezvous/takeover/schedule.h"

namespace ddprun::simulation {

constexpr int machines_max = 7;

struct Line {
  rendezvous::ControlMessage message;
  // For the checks alone: what the coordinator that sent it knows.
  int round = nothing;
  int term = 0;
  bool end = false;  // Of the connection, in this direction.
};

enum class Way { Up, Down };  // To the server, to the client.

struct Connection {
  int client = 0;  // Processes.
  int server = 0;
  rendezvous::PeerId peer = 0;  // What the server calls it.
  bool client_closed = false;   // It reads no more.
  bool server_closed = false;
  bool dismissed = false;  // By the server.
  std::deque<Line> up, down;
};

class Network {
 public:
  // `read`: a line has come, to that end of the connection.
  using Read = std::function<void(int connection, Way way, Line line)>;
  // `schedule` and `chance` outlive the network.
  Network(Schedule& schedule, Chance& chance, Read read);

  // The next process, by the order of these calls, is on that machine.
  void add_process(int machine) { machines_.push_back(machine); }

  // How long a line takes from now on; between machines.
  Milliseconds delay();
  void cut(int from_machine, int to_machine, Schedule::TimePoint until);
  // Both ways, between two processes.
  bool joins(int process, int other) const;
  bool is_cut(int from_process, int to_process) const;

  int connect(int client, int server, rendezvous::PeerId peer);  // Its number.
  Connection& operator[](int connection) {
    return connections_[static_cast<std::size_t>(connection)];
  }
  const Connection& operator[](int connection) const {
    return connections_[static_cast<std::size_t>(connection)];
  }
  // What was sent while the way is cut comes when it has healed.
  void send(int connection, Way way, Line line);
  void send_end(int connection, Way way) { send(connection, way, {.message = {}, .end = true}); }

  // Every connection of the process ends for both sides.
  void reset(int process);
  // The kernel of a process that has ended closes what was open.
  void close_all(int process);
  // A machine that has its power again knows nothing of its connections, and says so.
  void power_returns(int machine);

 private:
  int machine_of(int process) const { return machines_[static_cast<std::size_t>(process)]; }
  Schedule::TimePoint cut_until(int from_process, int to_process) const;
  void deliver(int connection, Way way);

  Schedule& schedule_;
  Chance& chance_;
  Read read_;
  std::vector<int> machines_;  // By process.
  std::deque<Connection> connections_;
  std::array<std::array<Schedule::TimePoint, machines_max>, machines_max> cut_until_{};
};

}  // namespace ddprun::simulation
