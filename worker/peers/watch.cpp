// The watching thread and its messages.
//
//   message := WatchHeader text        Abort: the reason; Answer, Hearing: a RankSet's bytes;
//   others: none
#include "worker/peers/watch.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <exception>

#include "worker/declare_failure.h"
#include "worker/peers/silence.h"

namespace ddprun::worker {
namespace {

constexpr std::uint32_t watch_magic = 0x57504444;  // "DDPW"
constexpr std::uint32_t kind_goodbye = 1;
constexpr std::uint32_t kind_abort = 2;
constexpr std::uint32_t kind_query = 3;
constexpr std::uint32_t kind_answer = 4;
constexpr std::uint32_t kind_hearing_query = 5;
constexpr std::uint32_t kind_hearing = 6;
constexpr std::size_t text_bytes_max = 8192;  // A set of 65,536 ranks.
constexpr std::size_t reason_bytes_max = 2048;
constexpr auto catch_up_pause = std::chrono::microseconds{50};

// The kernel gave up on a connection because nothing came from the other host, not because the peer
// closed it. The second and third are what a router, or our own kernel, said meanwhile.
bool is_silence(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
}

struct WatchHeader {
  std::uint32_t magic = watch_magic;
  std::uint32_t kind = 0;
  std::uint32_t bytes = 0;
};

// The one without a connection is this rank itself.
int own_rank(const std::vector<PeerWatch::Peer>& peers) {
  const auto self = std::find_if(peers.begin(), peers.end(),
                                 [](const PeerWatch::Peer& peer) { return !peer.connection; });
  return static_cast<int>(self - peers.begin());
}

}  // namespace

PeerWatch::PeerWatch(std::vector<Peer> peers, std::function<void()> wake)
    : peers_(std::move(peers)),
      received_(peers_.size()),
      wake_(std::move(wake)),
      departed_(peers_.size()),
      known_(peers_.size()),
      send_errors_(peers_.size()),
      answers_(peers_.size()),
      exceptions_before_(std::uncaught_exceptions()),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      look_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_ || !look_) throw CommunicatorError(std::string("eventfd: ") + std::strerror(errno));
  const bool alone = std::none_of(peers_.begin(), peers_.end(),
                                  [](const Peer& peer) { return bool(peer.connection); });
  if (!alone) thread_ = std::thread([this] { run(); });
}

PeerWatch::~PeerWatch() {
  if (!owner_.is_this()) {
    leave_to_parent(thread_);
    leave_to_parent(changed_);
    return;
  }
  const bool thrown = std::uncaught_exceptions() > exceptions_before_;
  if (!thrown) tell_untold();
  if (!aborted() && thrown) {
    send_to_all(kind_abort, "rank " + std::to_string(own_rank(peers_)) + failure_without_words);
  } else if (!aborted()) {
    send_to_all(kind_goodbye, "");
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

void PeerWatch::abort(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(mutex_);  // Not between a waiter's look and its sleep.
    if (record(reason)) aborted_at_ = std::chrono::steady_clock::now();
  }
  changed_.notify_all();
  wake_();
  // By whoever gets here first, not by whose reason it is: a second thread that aborts may end the
  // process before the first one runs on.
  if (spread_.exchange(true)) return;
  try {
    send_to_all(kind_abort, this->reason().substr(0, reason_bytes_max));
  } catch (...) {  // Without memory for a copy: the connections' end tells that this rank is gone.
  }
}

void PeerWatch::abort_unless_told(const std::string& reason,
                                  std::chrono::milliseconds after) noexcept {
  Abortable::abort_unless_told(reason, after);
  telling_at_ = std::chrono::steady_clock::now() + after;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(look_.get(), &one, sizeof(one));
}

std::vector<std::string> PeerWatch::names() const {
  std::vector<std::string> names;
  for (const Peer& peer : peers_) names.push_back(peer.name);
  return names;
}

void PeerWatch::settle(int peer) {
  const auto deadline = std::chrono::steady_clock::now() + settle_time;
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return aborted() || departed(peer); });
}

void PeerWatch::wait_until_known() {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, aborted_at_ + knowing_time, [&] {
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      if (peers_[rank].connection && !departed_[rank] && !known_[rank]) return false;
    }
    return true;
  });
}

void PeerWatch::note_known(std::size_t peer) {
  {
    const std::lock_guard lock(mutex_);
    known_[peer] = true;
  }
  changed_.notify_all();
}

bool PeerWatch::has_unread() const {
  std::vector<pollfd> polled;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (!peers_[rank].connection || known_[rank]) continue;
    polled.push_back({peers_[rank].connection.get(), POLLIN, 0});
  }
  return !polled.empty() && ::poll(polled.data(), polled.size(), 0) > 0;
}

void PeerWatch::catch_up() {
  const auto deadline = std::chrono::steady_clock::now() + settle_time;
  // In this order: what is not unread any more has been read under reading_.
  while (!aborted() && (has_unread() || reading_) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(catch_up_pause);
  }
}

void PeerWatch::run() {
  std::vector<pollfd> polled;
  std::vector<std::size_t> ranks;  // Of polled[2..].
  for (const Peer& peer : peers_) open_.push_back(static_cast<bool>(peer.connection));
  for (;;) {
    polled = {{stop_.get(), POLLIN, 0}, {look_.get(), POLLIN, 0}};
    ranks.clear();
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      if (!open_[rank]) continue;
      polled.push_back({peers_[rank].connection.get(), POLLIN, 0});
      ranks.push_back(rank);
    }
    if (::poll(polled.data(), polled.size(), milliseconds_to_next()) < 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      return abort("rank " + std::to_string(own_rank(peers_)) +
                   " cannot watch its peers any more: poll of " + std::to_string(polled.size()) +
                   " descriptors: " + std::strerror(error) +
                   (error == EINVAL ? " (raise the limit of open files, ulimit -n)" : ""));
    }
    if (polled[0].revents != 0) return;
    std::uint64_t looks = 0;
    [[maybe_unused]] const auto read = ::read(look_.get(), &looks, sizeof(looks));
    if (std::chrono::steady_clock::now() >= telling_at_.load()) {
      telling_at_ = std::chrono::steady_clock::time_point::max();
      tell_untold();
    }
    reading_ = true;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (polled[i + 2].revents != 0) open_[ranks[i]] = read_from(ranks[i]);
    }
    reading_ = false;
    give_verdict();
  }
}

bool PeerWatch::read_from(std::size_t peer) {
  char bytes[1024];
  PeerLink& connection = peers_[peer].connection;
  ssize_t got = 0;
  do {
    got = connection.receive(bytes, sizeof(bytes));
    if (got > 0) received_[peer].append(bytes, static_cast<std::size_t>(got));
  } while (got > 0 && connection.has_opened());
  if (got > 0) {
    handle_messages(peer);
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  // A send that failed took the connection's error with it: what is left to read is a mere end.
  lose(peer, got < 0 ? errno : send_errors_[peer].load());
  note_known(peer);
  return false;
}

void PeerWatch::lose(std::size_t peer, int error) {
  if (departed_[peer] || aborted()) return;
  if (is_silence(error)) return suspect(peer);
  if (error == EBADMSG) {
    abort("the connection from " + peers_[peer].name + ": " + not_sealed_words);
    return;
  }
  abort(peers_[peer].name + " is gone: its connection " +
        (error == 0 ? std::string("was closed") : std::string("failed: ") + std::strerror(error)) +
        ", without a goodbye (it crashed, was killed or its host went away)");
}

void PeerWatch::suspect(std::size_t peer) {
  if (suspicion_) return;  // Others of the same host, most likely: one verdict is enough.
  suspicion_ = {peer, std::chrono::steady_clock::now() + hearing_time, {}};
  suspicion_->heard.resize(peers_.size());
  send_to_all(kind_hearing_query, "");
}

int PeerWatch::milliseconds_to_next() const {
  constexpr auto never = std::chrono::steady_clock::time_point::max();
  if (aborted()) return -1;
  const auto next = std::min(telling_at_.load(), suspicion_ ? suspicion_->until : never);
  if (next == never) return -1;
  const auto left = next - std::chrono::steady_clock::now();
  return std::max(0, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
}

void PeerWatch::give_verdict() {
  if (!suspicion_ || aborted()) return;
  bool complete = true;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (open_[rank] && !departed_[rank] && !suspicion_->heard[rank]) complete = false;
  }
  if (!complete && std::chrono::steady_clock::now() < suspicion_->until) return;
  const int rank = own_rank(peers_);
  const auto peer = static_cast<int>(suspicion_->peer);
  const std::string after = std::to_string(peer_silence_max.count()) + " s";
  abort(to_string(judge_silence(rank, peer, suspicion_->heard), rank, peer, names(), after));
}

// The kernel asks an idle peer's kernel each second (mesh.cpp), so that the age of the last answer
// says whether the way there and back works, without a message of ours and whatever the peer does.
RankSet PeerWatch::heard() const {
  RankSet ranks;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (!open_[rank]) continue;
    tcp_info info{};
    socklen_t size = sizeof(info);
    // One that is no TCP connection lies on this host.
    const bool known =
        ::getsockopt(peers_[rank].connection.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
    const auto age = std::chrono::milliseconds{info.tcpi_last_ack_recv};
    if (!known || age < peer_silence_max / 2) ranks.insert(static_cast<int>(rank));
  }
  return ranks;
}

void PeerWatch::handle_messages(std::size_t peer) {
  std::string& bytes = received_[peer];
  WatchHeader header;
  while (bytes.size() >= sizeof(header)) {
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (header.magic != watch_magic || header.bytes > text_bytes_max) {
      bytes.clear();
      abort(peers_[peer].name + " sent bytes that are not a message of ddprun");
      return;
    }
    if (bytes.size() < sizeof(header) + header.bytes) return;
    const std::string text = bytes.substr(sizeof(header), header.bytes);
    bytes.erase(0, sizeof(header) + header.bytes);
    handle(peer, header.kind, text);
  }
}

void PeerWatch::handle(std::size_t peer, std::uint32_t kind, const std::string& text) {
  if (kind == kind_abort) {
    abort(text);
    return note_known(peer);
  }
  if (kind == kind_query) return send_to(peer, kind_answer, waiting_for().to_bytes());
  if (kind == kind_hearing_query) return send_to(peer, kind_hearing, heard().to_bytes());
  if (kind == kind_hearing) {
    if (suspicion_) suspicion_->heard[peer] = RankSet::from_bytes(text);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (kind == kind_goodbye) departed_[peer] = true;
    if (kind == kind_answer) answers_[peer] = RankSet::from_bytes(text);
  }
  changed_.notify_all();
  if (kind == kind_goodbye) wake_();
}

void PeerWatch::set_waiting_for(RankSet ranks) {
  {
    const std::lock_guard lock(waiting_mutex_);
    waiting_for_ = std::move(ranks);
  }
  waits_ = true;
}

RankSet PeerWatch::waiting_for() const {
  if (!waits_) return {};
  const std::lock_guard lock(waiting_mutex_);
  return waiting_for_;
}

std::vector<std::optional<RankSet>> PeerWatch::ask() {
  const auto deadline = std::chrono::steady_clock::now() + answer_time;
  {
    const std::lock_guard lock(mutex_);
    answers_.assign(peers_.size(), std::nullopt);
  }
  send_to_all(kind_query, "");
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] {
    for (std::size_t rank = 0; rank < peers_.size() && !aborted(); ++rank) {
      const bool can_answer = peers_[rank].connection && !departed_[rank];  // Who has left cannot.
      if (can_answer && !answers_[rank]) return false;
    }
    return true;
  });
  return answers_;
}

void PeerWatch::send_to(std::size_t rank, std::uint32_t kind, const std::string& text) noexcept {
  Peer& peer = peers_[rank];
  if (!peer.connection || !owner_.is_this()) return;
  const WatchHeader header{watch_magic, kind, static_cast<std::uint32_t>(text.size())};
  iovec parts[2] = {{const_cast<WatchHeader*>(&header), sizeof(header)},
                    {const_cast<char*>(text.data()), text.size()}};
  const std::lock_guard lock(send_mutex_);
  // A handful of short messages in a connection's life: they always fit its buffer.
  if (peer.connection.send_message(parts, 2) < 0 && errno != EAGAIN) {
    send_errors_[rank] = errno;
  }
}

void PeerWatch::send_to_all(std::uint32_t kind, const std::string& text) noexcept {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) send_to(rank, kind, text);
}

std::vector<PeerWatch::Peer> to_watch(std::vector<PeerSockets>& sockets,
                                      const std::vector<PeerAddress>& addresses) {
  assert(sockets.size() == addresses.size());
  std::vector<PeerWatch::Peer> peers;
  for (std::size_t rank = 0; rank < sockets.size(); ++rank) {
    peers.push_back(
        {std::move(sockets[rank].watch), "rank " + std::to_string(rank) + " (pid " +
                                             std::to_string(addresses[rank].segment.pid) + " on " +
                                             addresses[rank].ip + ")"});
  }
  return peers;
}

}  // namespace ddprun::worker
