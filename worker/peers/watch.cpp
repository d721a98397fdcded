// The watching thread and its messages.
//
//   message := WatchHeader text        Abort: the reason; Answer: a RankSet, 8 bytes; others: none
#include "worker/peers/watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "worker/declare_failure.h"

namespace ddprun::worker {
namespace {

constexpr std::uint32_t watch_magic = 0x57504444;  // "DDPW"
constexpr std::uint32_t kind_goodbye = 1;
constexpr std::uint32_t kind_abort = 2;
constexpr std::uint32_t kind_query = 3;
constexpr std::uint32_t kind_answer = 4;
constexpr std::size_t text_bytes_max = 2048;

struct WatchHeader {
  std::uint32_t magic = watch_magic;
  std::uint32_t kind = 0;
  std::uint32_t bytes = 0;
};

// The rank without a connection is this one.
std::string own_name(const std::vector<PeerWatch::Peer>& peers) {
  std::size_t self = 0;
  while (self + 1 < peers.size() && peers[self].connection) ++self;
  return "rank " + std::to_string(self);
}

}  // namespace

PeerWatch::PeerWatch(std::vector<Peer> peers, std::function<void()> wake)
    : peers_(std::move(peers)),
      received_(peers_.size()),
      wake_(std::move(wake)),
      departed_(peers_.size()),
      answers_(peers_.size()),
      exceptions_before_(std::uncaught_exceptions()),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_) throw CommunicatorError(std::string("eventfd: ") + std::strerror(errno));
  const bool alone = std::none_of(peers_.begin(), peers_.end(),
                                  [](const Peer& peer) { return bool(peer.connection); });
  if (!alone) thread_ = std::thread([this] { run(); });
}

PeerWatch::~PeerWatch() {
  if (!aborted() && std::uncaught_exceptions() > exceptions_before_) {
    send_to_all(kind_abort, own_name(peers_) + failure_without_words);
  } else if (!aborted()) {
    send_to_all(kind_goodbye, "");
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

void PeerWatch::abort(const std::string& reason) noexcept {
  try {
    set_reason(reason);
  } catch (...) {  // Out of memory: the abort itself must still happen.
  }
  {
    const std::lock_guard lock(mutex_);
    aborted_.store(true, std::memory_order_seq_cst);
  }
  changed_.notify_all();
  wake_();
  if (!spread_.exchange(true)) {
    try {
      send_to_all(kind_abort, this->reason().substr(0, text_bytes_max));
    } catch (...) {
    }
  }
}

void PeerWatch::set_reason(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (reason_.empty()) reason_ = reason.empty() ? "aborted without a reason" : reason;
}

std::string PeerWatch::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::vector<std::string> PeerWatch::names() const {
  std::vector<std::string> names;
  for (const Peer& peer : peers_) names.push_back(peer.name);
  return names;
}

void PeerWatch::settle(int peer, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return aborted() || departed(peer); });
}

void PeerWatch::run() {
  std::vector<pollfd> polled;
  std::vector<std::size_t> ranks;  // Of polled[1..].
  std::vector<bool> open;
  for (const Peer& peer : peers_) open.push_back(static_cast<bool>(peer.connection));
  for (;;) {
    polled.assign(1, {stop_.get(), POLLIN, 0});
    ranks.clear();
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      if (!open[rank]) continue;
      polled.push_back({peers_[rank].connection.get(), POLLIN, 0});
      ranks.push_back(rank);
    }
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (polled[i + 1].revents != 0) open[ranks[i]] = read_from(ranks[i]);
    }
  }
}

bool PeerWatch::read_from(std::size_t peer) {
  char bytes[1024];
  const ssize_t got = ::recv(peers_[peer].connection.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (got > 0) {
    received_[peer].append(bytes, static_cast<std::size_t>(got));
    handle_messages(peer);
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  lose(peer);
  return false;
}

void PeerWatch::lose(std::size_t peer) {
  if (departed_[peer] || aborted()) return;
  abort(peers_[peer].name +
        " is gone: its connection was closed without a goodbye (it crashed, was "
        "killed or its host went away)");
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
  if (kind == kind_abort) return abort(text);
  if (kind == kind_query) {
    const RankSet ranks = waiting_for_.load();
    return send_to(peers_[peer], kind_answer,
                   std::string(reinterpret_cast<const char*>(&ranks), sizeof(ranks)));
  }
  {
    const std::lock_guard lock(mutex_);
    if (kind == kind_goodbye) departed_[peer] = true;
    if (kind == kind_answer && text.size() == sizeof(RankSet)) {
      std::memcpy(&answers_[peer].emplace(), text.data(), sizeof(RankSet));
    }
  }
  changed_.notify_all();
  if (kind == kind_goodbye) wake_();
}

std::vector<std::optional<RankSet>> PeerWatch::ask(std::chrono::steady_clock::time_point deadline) {
  std::size_t asked = 0;
  {
    const std::lock_guard lock(mutex_);
    answers_.assign(peers_.size(), std::nullopt);
  }
  for (const Peer& peer : peers_) asked += peer.connection ? 1 : 0;
  send_to_all(kind_query, "");
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] {
    const auto answered = std::count_if(answers_.begin(), answers_.end(),
                                        [](const auto& answer) { return answer.has_value(); });
    return aborted() || static_cast<std::size_t>(answered) == asked;
  });
  return answers_;
}

void PeerWatch::send_to(const Peer& peer, std::uint32_t kind, const std::string& text) noexcept {
  if (!peer.connection) return;
  const WatchHeader header{watch_magic, kind, static_cast<std::uint32_t>(text.size())};
  iovec parts[2] = {{const_cast<WatchHeader*>(&header), sizeof(header)},
                    {const_cast<char*>(text.data()), text.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const std::lock_guard lock(send_mutex_);
  // A handful of short messages in a connection's life: they always fit its buffer.
  ::sendmsg(peer.connection.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void PeerWatch::send_to_all(std::uint32_t kind, const std::string& text) noexcept {
  for (const Peer& peer : peers_) send_to(peer, kind, text);
}

}  // namespace ddprun::worker
