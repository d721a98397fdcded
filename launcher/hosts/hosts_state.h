// A job on several hosts as the launcher sees it that has started them all: who is asked what next,
// and what follows when one does not come, ends, or somebody presses Ctrl-C. A core: no processes,
// timers or clock.
//
//   Starting ---all nodes are there---> Opening ---node 0 listens---> Running ---all ended---> Done
//      |                                  |                              |
//      | one failed, is late, a signal    | the same                     | a signal, one is lost or
//      |                                  |                              | tells a failure, or ends
//      |                                  |                              | before a round
//      +---------------> Ending <---------+------------------------------+
//                          | all ended: Done; the deadline: Kill
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

struct HostsLimits {
  int at_once = 32;                           // That are started and have not said hello.
  int at_once_where_short = 4;                // The same once an sshd has turned one away.
  int tries = 10;                             // Of a node that is turned away.
  std::chrono::milliseconds hello{60'000};    // From a node's start to its hello.
  std::chrono::milliseconds opening{60'000};  // From there until node 0 listens.
  std::chrono::milliseconds ending{90'000};   // From a stop until the last one has ended.
  // The same where nobody has workers that need time, or a second Ctrl-C says that there is none.
  std::chrono::milliseconds killing{10'000};
  bool elastic = false;  // The others may go on without one.
  bool stay = false;     // A node goes on without its connection.
  int least = 0;         // Nodes that a first round takes; 0: all of them.
};

// For how long a host that was turned away `times` times is left alone: by its number another time
// than others, so that they do not all come at the same moment again.
std::chrono::milliseconds pause_of_turned_away(int host, int times);

struct HostsAct {
  enum class What {
    Start,   // Start `node`.
    Tell,    // Tell `node` what it has to do.
    Signal,  // Pass `signal` on to `node`.
    Kill,    // End the connection to `node`; what runs there ends by that.
    Finish,  // Nothing is left to wait for.
  };
  What what = What::Finish;
  int node = -1;
  int signal = 0;

  bool operator==(const HostsAct&) const = default;
};

struct HostsStep {
  std::vector<HostsAct> acts;
  std::string reason;  // Never empty.
};

class HostsState {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class Phase { Starting, Opening, Running, Ending, Done };
  // What a node has said of the job before it ended.
  enum class Verdict { None, Success, Failure };
  struct Late {
    int node = 0;
    Phase phase = Phase::Starting;  // In which it was waited for.
  };

  HostsState(HostsLimits limits, int nodes)
      : limits_(limits), nodes_(static_cast<std::size_t>(nodes)) {}

  HostsStep begin(TimePoint now);
  // An sshd, of the node or of a host on the way, had too many logins at once: the node is started
  // again after a while, and from then on fewer are at a time. Nothing: it has had all its tries.
  std::optional<HostsStep> turned_away(int node, TimePoint now);
  HostsStep hello(int node, TimePoint now);
  HostsStep opened();  // By node 0.
  HostsStep begun();   // A round has, on any node.
  // The connection to `node` has ended.
  HostsStep ended(int node, Verdict verdict, TimePoint now);
  HostsStep signal(int signal, TimePoint now);
  // Its endpoint cannot be chosen, its version is another one: the job cannot begin.
  HostsStep refuse(const std::string& why, TimePoint now);

  // When deadline_passed() is to be called; nothing: never.
  std::optional<TimePoint> deadline() const;
  HostsStep deadline_passed(TimePoint now);
  // Output of the hosts has waited for whoever reads ours.
  HostsStep output_waited(TimePoint now);

  Phase phase() const { return phase_; }
  bool has_begun() const { return begun_; }
  // The node that ended too early for the job to begin.
  std::optional<int> preventer() const { return preventer_; }
  // Nodes that were killed because they said nothing for too long.
  const std::vector<Late>& late() const { return late_; }

 private:
  enum class Node { Waiting, Starting, Ready, Told, Ended };
  struct Place {
    Node state = Node::Waiting;
    TimePoint since{};
    int turned_away = 0;     // So often.
    TimePoint not_before{};  // Waiting.
  };

  void start_some(TimePoint now, HostsStep& step);
  void begin_to_end(TimePoint now, std::chrono::milliseconds limit) {
    phase_ = Phase::Ending;
    until_ = now + limit;
  }
  // Ends those that wait for a word, and asks those that run with `signal`.
  void give_up(int signal, HostsStep& step);
  void kill_all(HostsStep& step);
  HostsStep finish_if_done(HostsStep step);
  bool all(Node state) const;
  bool has_room() const;  // For one more that is started.
  bool can_begin() const;

  HostsLimits limits_;
  std::vector<Place> nodes_;
  Phase phase_ = Phase::Starting;
  TimePoint until_{};  // Of Opening and Ending.
  int interrupts_ = 0;
  bool signalled_ = false;
  bool begun_ = false;
  std::optional<int> preventer_;
  std::vector<Late> late_;
};

}  // namespace ddprun::launcher
