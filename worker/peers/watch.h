// Learns at once that a peer died, left or gave up, and tells this process's blocked call.
//
//   peer's connection ends without goodbye --+
//   peer sends Abort{reason} ----------------+--> aborted() is set FIRST, then `wake` is called,
//   abort(reason) of this process -----------+    then all peers are sent Abort{reason}
//   peer sends Goodbye -------------------------> departed(peer), then `wake`
//   peer sends Query ---------------------------> is answered with whom this rank waits for
//   peer's host falls silent -> all others are sent Hearing? -> verdict (silence.h), then abort
//   peer sends Hearing? ------------------------> is answered with whose hosts this rank hears
//
// The first reason wins and is what every later call reports. One thread reads one connection per
// peer, which carries nothing else, so that a verdict never waits behind data.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "worker/owning_process.h"
#include "worker/peers/abortable.h"
#include "worker/peers/blame.h"
#include "worker/peers/mesh.h"

namespace ddprun::worker {

// For a process that lives on a host with more work than cores to say whom it waits for: who is
// taken for silent is blamed.
constexpr auto answer_time = std::chrono::milliseconds{2'000};
// To say whom they hear. The others' kernels have asked each second, so that they know at once.
constexpr auto hearing_time = std::chrono::milliseconds{1'000};
// For a connection to tell why its peer's data ended: longer than others are asked about a peer
// that fell silent.
constexpr auto settle_time = 2 * hearing_time;
// For peers to say that they know of an abort. A process that is stopped says nothing.
constexpr auto knowing_time = std::chrono::milliseconds{1'000};

class PeerWatch final : public Abortable {
 public:
  struct Peer {
    PeerLink connection;  // Empty for this rank itself.
    std::string name;     // "rank 2 (pid 4127 on 10.0.0.2)"
  };

  // Element r of `peers` is rank r. `wake` is called from the watching thread and from abort(): it
  // must not block and must outlive this object.
  PeerWatch(std::vector<Peer> peers, std::function<void()> wake);
  // Says goodbye to all peers; or, where an exception destroys it, that this rank failed: what it
  // was is not known here (declare_failure.h), but a peer must not take it for a rank that was
  // done; or what abort_unless_told() was to tell. A copy in a forked child says nothing to
  // anybody.
  ~PeerWatch() override;

  void abort(const std::string& reason) noexcept override;
  void abort_unless_told(const std::string& reason,
                         std::chrono::milliseconds after = telling_time) noexcept override;
  bool departed(int peer) const noexcept { return departed_[static_cast<std::size_t>(peer)]; }
  std::vector<std::string> names() const;  // Of the peers; element r is rank r's.

  // Data from `peer` ended: its own connection tells why a moment later. Waits for that, at most
  // settle_time.
  void settle(int peer);

  // Once aborted: waits until all peers that are still there know it, too, which each says by an
  // Abort of its own. For knowing_time since the abort at most.
  void wait_until_known();
  // Waits until all that has come from the peers so far was read: what one of them said before
  // something that this thread has just seen is in aborted() then. For settle_time at most.
  void catch_up();

  // Whom this rank's blocked call waits for; what Queries are answered with.
  void set_waiting_for(RankSet ranks);
  void set_in_no_call() noexcept { waits_ = false; }
  // Asks every peer whom it waits for; index = rank. Waits for the answers for answer_time, or
  // until aborted() or all are there of those that have not left. One thread at a time.
  std::vector<std::optional<RankSet>> ask();

 private:
  void run();
  bool read_from(std::size_t peer);  // False: nothing more will come from this peer.
  void note_known(std::size_t peer);
  bool has_unread() const;
  void handle_messages(std::size_t peer);
  void lose(std::size_t peer, int error);
  void suspect(std::size_t peer);
  RankSet heard() const;
  RankSet waiting_for() const;
  int milliseconds_to_next() const;  // To a verdict, or until an untold failure is told. -1: none.
  void give_verdict();               // Once all have answered, or the time for it is over.
  void handle(std::size_t peer, std::uint32_t kind, const std::string& text);
  void send_to(std::size_t rank, std::uint32_t kind, const std::string& text) noexcept;
  void send_to_all(std::uint32_t kind, const std::string& text) noexcept;

  // A silent peer, and who hears whom of those that were asked. Of the watching thread alone, as
  // are open_ and received_.
  struct Suspicion {
    std::size_t peer;
    std::chrono::steady_clock::time_point until;
    std::vector<std::optional<RankSet>> heard;
  };

  std::vector<Peer> peers_;
  std::vector<bool> open_;  // Connections that are not at their end.
  std::optional<Suspicion> suspicion_;
  std::vector<std::string> received_;  // Bytes of messages that are not complete yet.
  std::function<void()> wake_;
  std::vector<std::atomic<bool>> departed_;
  std::vector<std::atomic<bool>> known_;  // Those that have said Abort, or will say nothing more.
  std::atomic<bool> reading_{false};
  std::vector<std::atomic<int>> send_errors_;
  std::atomic<bool> spread_{false};
  std::atomic<bool> waits_{false};
  mutable std::mutex waiting_mutex_;  // Guards waiting_for_, which counts while waits_.
  RankSet waiting_for_;
  // When the thread tells what nobody has told.
  std::atomic<std::chrono::steady_clock::time_point> telling_at_{
      std::chrono::steady_clock::time_point::max()};

  std::mutex mutex_;  // Guards answers_ and aborted_at_, and what changed_ tells of.
  std::chrono::steady_clock::time_point aborted_at_{};
  std::vector<std::optional<RankSet>> answers_;
  std::condition_variable changed_;
  std::mutex send_mutex_;  // One message at a time on the connections.

  const OwningProcess owner_;
  const int exceptions_before_;  // In flight when this was made: one more destroys it.
  UniqueFd stop_;                // An eventfd; readable: the thread ends.
  UniqueFd look_;                // Another; readable: telling_at_ was set.
  std::thread thread_;
};

// The connections that a Mesh made for the watch, which are taken out of `sockets`, with the names
// that messages give to the ranks behind them.
std::vector<PeerWatch::Peer> to_watch(std::vector<PeerSockets>& sockets,
                                      const std::vector<PeerAddress>& addresses);

}  // namespace ddprun::worker
