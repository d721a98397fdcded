// What becomes of a group of workers, decided without touching a process or a clock: whose end is
// told first, when what is left is asked to end, killed, and given up.
//
//             stop()             deadline             deadline, kill_wait
//   Running ---------> Asked ---------------> Killing ---------------------> given up
//      |                 |                       |
//      | the last worker | ended by itself,      |
//      | and leaves something behind             |
//      +------> Asked    +--------> nothing left: finished
//
// A dead process stays until the kernel has freed its memory, a tenth of a second for each
// gigabyte. Where another attempt follows, nobody waits for that.
//
// Where another attempt may follow, stop() may spare those who can park
// (rendezvous/contract/spare_channel.h): Keep::Held until the job's verdict is known, Keep::Parking
// when another attempt follows. Who is parked counts as gone; when the others are, the group
// finishes, and those that are parked are the owner's to give a rank or to stop. Who has not parked
// by the deadline is asked then, and has the same grace as the others had.
//
// worker_group.cpp feeds in what it sees and carries out what comes back, in order.
// A core: no processes, timers or clock.
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::launcher {

struct WorkerGroupLimits {
  // A process may hang in the kernel and outlive SIGKILL: after this it is reported as gone.
  std::chrono::milliseconds kill_wait{5'000};
  // The same of parked ones between two attempts, where nothing else is done meanwhile: far below
  // any heartbeat time-out.
  std::chrono::milliseconds kept_kill_wait{200};
  // One that does not hang, but has so much memory, or so slow a driver, that the kernel takes long
  // to take it apart: for as long as this, within what the coordinator waits for a node.
  std::chrono::milliseconds freed_wait{45'000};
  // A worker that ended is reported after those that began to end before it; should one of these
  // take longer than this (a driver that releases a GPU), without it.
  std::chrono::milliseconds order_wait{1'000};
  // A worker that died of one of these signals, which the launcher handles itself, is told only
  // after this: whoever ends a container or a job step sends them to all of its processes, in any
  // order, and it is the launcher's own that counts.
  std::vector<int> shared_signals = {};
  std::chrono::milliseconds shared_wait{100};
  // What workers leave behind when all have succeeded gets SIGTERM, and SIGKILL after this. Nobody
  // waits for it: torchrun lets it live, mpirun gives it a second. An uploader of logs may need
  // some, and a job that has succeeded must not look as if it hung.
  std::chrono::milliseconds leftover_grace{5'000};
  // The same when one of them has failed, which may be the shell around a program that a
  // scheduler's SIGTERM has reached, too, and that saves its work now.
  std::chrono::milliseconds failed_grace{30'000};
};

enum class GroupAction {
  AskAnew,    // The signal is another one: whoever was asked before is asked again.
  Ask,        // Send GroupState::signal() to every member that was not asked yet ...
  AskIts,     // ... to those in the session of the worker that ended just now.
  TellOver,   // Tell those who are spared, and have not been told, that the attempt is over.
  KillAsked,  // SIGKILL to every member that was asked before.
  Kill,     // SIGKILL to every member. Those who are spared are no members, nor what they started.
  SayWait,  // That the kernel still takes apart what was killed.
  GiveUp,   // Say what is left; the group ends without it.
  Finish,   // Nothing is left.
};

struct GroupStep {
  std::vector<GroupAction> actions;
  std::string reason;  // Never empty.
};

// Whom stop() spares: nobody; those who can park, since nobody knows yet whether another attempt
// follows; the same, and one follows.
enum class Keep { Nobody, Held, Parking };

// BeingFreed: all have ended, and of some there is memory left that the kernel frees.
enum class GroupEnds { NotAll, BeingFreed, AllSucceeded, SomeFailed };

// A worker, as the shell sees it.
struct GroupMember {
  bool told = false;                                 // Its end was reported.
  bool known = false;                                // Its exit status ...
  bool failed = false;                               // ... which is not 0.
  int signal = 0;                                    // Which it died of.
  bool ending = false;                               // That is known, and its process still there.
  bool only_memory = false;                          // Of which just its memory is left to free.
  bool stop_sent = false;                            // It lived when the attempt was stopped.
  bool asked = false;                                // It was sent a signal to end.
  bool can_park = false;                             // It said so ...
  bool parked = false;                               // ... and that it has done it.
  std::chrono::steady_clock::time_point ended_at{};  // As seen.
};

// Whether member `other` began to end before `ended`, whose status is known, and has ended or is
// about to.
using EndedEarlier = std::function<bool(int other, int ended)>;

// Of all of them: who was not told has not ended, unless it is parked, and who could not be reaped
// did not succeed.
GroupEnds ends_of(const std::vector<GroupMember>& members);

struct TellStep {
  std::optional<int> member;  // Whose end to report now.
  bool kept_back = false;     // One has ended whose turn has not come.
  std::string reason;
};

class GroupState {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit GroupState(WorkerGroupLimits limits = {}) : limits_(std::move(limits)) {}

  void started();  // Of an attempt. Not while one is active.
  // Nobody who was to end is kept by a later call; those who were kept are asked by a later one
  // that keeps nobody, and have all of its grace.
  GroupStep stop(int signal, std::chrono::milliseconds grace, TimePoint now,
                 Keep keep = Keep::Nobody);
  // `parking`: how many are spared and have not parked. `being_freed`: the kernel takes apart
  // every process that is left.
  GroupStep deadline_passed(TimePoint now, int parking = 0, bool being_freed = false);
  // One that was spared cannot park any more.
  GroupStep parker_lost() const;
  // Whether this one is to be sent no signal now.
  bool spares(const GroupMember& member) const;
  // A worker has ended. `left_behind`: a process of its group still lives. That one is asked at
  // once and not when all workers have ended: they may have hours to go.
  GroupStep leader_ended(bool left_behind) const;
  // After each look at the processes: what is told of the workers' ends, and whether any other
  // process of theirs is left.
  GroupStep looked(GroupEnds ends, bool leftovers, TimePoint now);

  // In the order in which they began to end. Call again until it names nobody.
  TellStep next_to_tell(const std::vector<GroupMember>& members, const EndedEarlier& ended_earlier,
                        TimePoint now);

  bool active() const { return active_; }
  bool killing() const { return killing_; }
  TimePoint killed_at() const { return killed_at_; }  // Of the first SIGKILL, while killing().
  bool keeping() const { return keep_ != Keep::Nobody; }
  bool another_follows() const { return keep_ == Keep::Parking; }
  std::chrono::milliseconds grace() const { return grace_; }  // Of the last stop().
  int signal() const { return signal_; }                      // How processes are asked to end.
  std::optional<TimePoint> deadline() const { return deadline_; }  // For deadline_passed().
  std::optional<TimePoint> tell_deadline() const;                  // To look again.

 private:
  GroupStep finished(GroupAction how, std::string reason);
  std::optional<TimePoint> first_shared(const std::vector<GroupMember>& members,
                                        TimePoint now) const;

  WorkerGroupLimits limits_;
  bool active_ = false;    // Between started() and Finish or GiveUp.
  bool killing_ = false;   // SIGKILL is out ...
  TimePoint killed_at_{};  // ... since then.
  Keep keep_ = Keep::Nobody;
  bool late_ = false;  // Who has not parked yet is spared no more.
  std::chrono::milliseconds grace_{0};
  int signal_ = SIGTERM;
  std::optional<TimePoint> deadline_;  // Of the grace, or of kill_wait when killing.
  // Set while a worker's end is kept back, for an earlier one and for a signal to the launcher.
  std::optional<TimePoint> order_deadline_;
  std::optional<TimePoint> shared_deadline_;
};

}  // namespace ddprun::launcher
