// Listening, calling and answering.
#include "worker/peers/mesh.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <locale>
#include <memory>
#include <sstream>

#include "rendezvous/host_and_port.h"
#include "rendezvous/random_id.h"
#include "worker/progress_page.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t strangers_max = 1024;  // Beside the ranks, among those that call.
constexpr int backlog = 4096;                // All may call at once, twice each.
constexpr int accept_pause_ms = 50;          // When descriptors have run out.

// This process's own, which nobody but it can give back; it does little else meanwhile, and knows
// alone why its peers wait for it.
constexpr std::chrono::seconds own_shortage_patience{2};

// Of a host that has just come back to its network the kernel says for a while that its neighbours
// cannot be reached. Of one that a firewall refuses it says the same, so not for the whole limit.
constexpr std::chrono::seconds unreachable_patience{5};
constexpr int unreachable_pause_ms = 50;

bool may_come_back(int error) { return error == EHOSTUNREACH || error == ENETUNREACH; }

int milliseconds_left(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(0, std::min<std::int64_t>(left, 60'000)));
}

// Why a connection that waits cannot be accepted, and may be later; "" if errno is of another kind.
std::string shortage(int error) {
  if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return "";
  return std::string("connections cannot be accepted: ") + std::strerror(error) +
         (error == EMFILE   ? " (raise the limit of open files, ulimit -n)"
          : error == ENFILE ? " (the limit of this host, fs.file-max)"
                            : "");
}

struct AddressInfoDeleter {
  void operator()(addrinfo* info) const { ::freeaddrinfo(info); }
};

// Numeric addresses only: names were resolved when the store was found.
std::unique_ptr<addrinfo, AddressInfoDeleter> resolve(const std::string& ip, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(ip.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw CommunicatorError("\"" + ip + "\" is not a numeric address: " + ::gai_strerror(error));
  }
  return std::unique_ptr<addrinfo, AddressInfoDeleter>(found);
}

struct Connection {
  UniqueFd fd;
  int error = 0;  // errno's value; ECANCELED: it was interrupted.
};

// What is to be said while a peer that is called does not answer, and until when it is waited for.
struct Patience {
  Clock::time_point deadline;
  int interrupt_fd;
  rendezvous::LongWait& wait;
  std::string problem;
};

Connection connect_once(const addrinfo& address, const Patience& patience) {
  Connection made;
  made.fd = UniqueFd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int fd = made.fd.get();
  if (!made.fd || ::connect(fd, address.ai_addr, address.ai_addrlen) != 0) made.error = errno;
  if (made.error != EINPROGRESS) return made;
  made.error = ETIMEDOUT;
  pollfd polled[] = {{fd, POLLOUT, 0}, {patience.interrupt_fd, POLLIN, 0}};
  while (Clock::now() < patience.deadline) {
    const auto until = std::min(patience.deadline, patience.wait.next());
    if (::poll(polled, 2, milliseconds_left(until)) <= 0) {
      if (const auto now = Clock::now(); patience.wait.is_due(now))
        patience.wait.tell(now, patience.problem);
      continue;
    }
    if (polled[1].revents != 0) {
      made.error = ECANCELED;
    } else {
      socklen_t size = sizeof(made.error);
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &made.error, &size);
    }
    break;
  }
  return made;
}

Connection connect_patiently(const addrinfo& address, const Patience& patience) {
  Connection made = connect_once(address, patience);
  const auto patient_until = std::min(patience.deadline, Clock::now() + unreachable_patience);
  while (may_come_back(made.error) && Clock::now() < patient_until) {
    pollfd interrupted{patience.interrupt_fd, POLLIN, 0};
    if (::poll(&interrupted, 1, unreachable_pause_ms) > 0) return {{}, ECANCELED};
    made = connect_once(address, patience);
  }
  return made;
}

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));  // Best effort: these only tune.
}

void tune(int fd, bool watch) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (!watch) return;
  // The peers' kernels answer these probes, whatever their processes do: a worker that is stopped,
  // in a debugger or in a long step is not silent. A probe each second, so that all ranks know at
  // any time whom they hear (PeerWatch::heard). Where data is under way there are no probes, and
  // the user timeout alone decides, as it does over the number of probes where it is set (tcp(7)).
  const int timeout_s = static_cast<int>(peer_silence_max.count());
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, timeout_s);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_s * 1000);
}

}  // namespace

std::string to_text(const PeerAddress& a) {
  // The words are parted by spaces, and a program's global locale may put some into numbers.
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << "3 " << a.host << ' ' << a.ip << ' ' << a.port << ' ' << a.secret << ' ' << a.segment.pid
      << ' ' << a.segment.fd << ' ' << a.segment.bytes << ' '
      << (a.segment.token.empty() ? "-" : a.segment.token) << (a.encrypts ? " sealed" : " plain")
      << ' ' << a.world_size << ' ' << (a.group.empty() ? "-" : a.group);
  return out.str();
}

PeerAddress parse_peer_address(const std::string& text, int rank) {
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  PeerAddress a;
  int version = 0;
  std::string kind;
  in >> version >> a.host >> a.ip >> a.port >> a.secret >> a.segment.pid >> a.segment.fd >>
      a.segment.bytes >> a.segment.token >> kind >> a.world_size >> a.group;
  if (!in || version != 3) {
    throw CommunicatorError("rank " + std::to_string(rank) +
                            " has an address that this program does not understand: the ranks' "
                            "programs are built with different versions of ddprun");
  }
  a.encrypts = kind == "sealed";
  if (a.group == "-") a.group.clear();
  return a;
}

std::vector<PeerAddress> parse_peer_addresses(const std::vector<std::string>& texts, int rank) {
  std::vector<PeerAddress> addresses;
  for (const std::string& text : texts) {
    addresses.push_back(parse_peer_address(text, static_cast<int>(addresses.size())));
  }
  const auto place = [&](std::size_t of) {
    const PeerAddress& a = addresses[of];
    return "rank " + std::to_string(of) + " is one of " + std::to_string(a.world_size) +
           (a.group.empty() ? " in the whole job" : " in the group \"" + a.group + "\"");
  };
  const auto own = static_cast<std::size_t>(rank);
  for (std::size_t peer = 0; peer < addresses.size(); ++peer) {
    if (addresses[peer].world_size == addresses[own].world_size &&
        addresses[peer].group == addresses[own].group)
      continue;
    throw CommunicatorError(place(own) + ", and " + place(peer) +
                            ": all ranks of a communicator must give the same world size and group "
                            "(CommunicatorOptions::group)");
  }
  return addresses;
}

std::shared_ptr<const WorkerKey> job_key() {
  try {
    return rendezvous::own_worker_key();
  } catch (const rendezvous::SecurityError& error) {
    throw CommunicatorError(error.what());
  }
}

void need_key_to_encrypt(int rank, const WorkerKey* key) {
  if (key != nullptr) return;
  throw CommunicatorError(
      "rank " + std::to_string(rank) +
      " is to encrypt the gradients and has no key: ddprun hands one over where the job has a "
      "secret (not with --auth none); under other launchers leave DDPRUN_ENCRYPT_GRADIENTS out");
}

Mesh::Mesh(int rank, Epoch epoch, const std::string& ip, std::shared_ptr<const WorkerKey> key,
           bool encrypts, For what_for)
    : rank_(rank),
      epoch_(epoch),
      secret_(rendezvous::random_id()),
      key_(std::move(key)),
      encrypts_(encrypts),
      what_for_(what_for) {
  if (encrypts_) need_key_to_encrypt(rank_, key_.get());
  const auto address = resolve(ip, 0);
  listener_ = UniqueFd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (!listener_ || ::bind(listener_.get(), address->ai_addr, address->ai_addrlen) != 0 ||
      ::listen(listener_.get(), backlog) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    throw CommunicatorError("rank " + std::to_string(rank) + " cannot listen on " + ip + ": " +
                            std::strerror(errno));
  }
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

OutgoingGreeting Mesh::call(int peer, const PeerAddress& to, MeshChannel channel,
                            Clock::time_point deadline) {
  const auto address = resolve(to.ip, to.port);
  const std::string place = rendezvous::host_and_port(to.ip, to.port);
  auto [fd, error] = connect_patiently(
      *address, {deadline, interrupt_fd_, wait_,
                 "rank " + std::to_string(peer) + " does not answer at " + place +
                     " (a firewall drops the packets, or a link is cut; the kernel tries for two "
                     "minutes)"});
  if (error == ECANCELED) end_interrupted();
  OutgoingGreeting greeting(std::move(fd),
                            {.epoch = epoch_,
                             .caller = static_cast<std::uint32_t>(rank_),
                             .callee = static_cast<std::uint32_t>(peer),
                             .channel = channel,
                             .word = to.secret,
                             .sealed = encrypts_},
                            key_);
  if (error == 0) error = greeting.begin();
  if (error != 0) {
    throw CommunicatorError("rank " + std::to_string(rank_) + " cannot connect to rank " +
                            std::to_string(peer) + " at " + place + ": " + std::strerror(error));
  }
  return greeting;
}

// Whoever has called and proved it, if nobody else has that place.
void Mesh::take(IncomingGreeting& caller, std::vector<PeerSockets>& sockets) const {
  const auto rank = static_cast<std::size_t>(caller.contact().caller);
  if (rank >= sockets.size() || static_cast<int>(rank) <= rank_) return;
  PeerLink& place =
      caller.contact().channel == MeshChannel::Data ? sockets[rank].data : sockets[rank].watch;
  if (!place) place = caller.take();
}

std::string Mesh::missing(const std::vector<PeerSockets>& sockets) const {
  std::string ranks;
  for (std::size_t rank = 0; rank < sockets.size(); ++rank) {
    const bool has_data = sockets[rank].data || !connects_data();
    if (static_cast<int>(rank) == rank_ || (has_data && sockets[rank].watch)) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return ranks;
}

void Mesh::end_interrupted() const {
  throw CommunicatorError("rank " + std::to_string(rank_) +
                          " stopped connecting to its peers: it was interrupted");
}

// Those that were called answer while they themselves are called, so both are waited for at once:
// ranks that first finished their own calls would come to their turns one after the other.
void Mesh::greet_all(std::vector<OutgoingGreeting>& calls, std::vector<PeerSockets>& sockets,
                     const std::vector<PeerAddress>& peers, Clock::time_point deadline) {
  std::vector<IncomingGreeting> callers;
  std::string short_of;  // Not empty: why the last connection could not be accepted.
  Clock::time_point short_until = deadline;
  while (!missing(sockets).empty()) {
    if (!short_of.empty() && Clock::now() >= short_until) {
      throw CommunicatorError("rank " + std::to_string(rank_) + " still needs rank(s) " +
                              missing(sockets) + ", and " + short_of);
    }
    if (Clock::now() >= deadline) {
      throw CommunicatorError("rank " + std::to_string(rank_) +
                              (calls.empty() ? " was not called by rank(s) "
                                             : " has no proven connection with rank(s) ") +
                              missing(sockets) + " in time" +
                              (turned_away_.empty() ? "" : "; " + turned_away_));
    }
    // A listener that cannot accept stays readable: it is left out, and tried again after a pause.
    const bool pausing = !short_of.empty();
    if (const auto now = Clock::now(); wait_.is_due(now)) {
      wait_.tell(now, "no connection with rank(s) " + missing(sockets) + " yet" +
                          (turned_away_.empty() ? "" : "; " + turned_away_));
    }
    const int left_ms = milliseconds_left(std::min(deadline, wait_.next()));
    std::vector<pollfd> polled{{pausing ? -1 : listener_.get(), POLLIN, 0}};
    for (const IncomingGreeting& caller : callers) polled.push_back({caller.fd(), POLLIN, 0});
    for (const OutgoingGreeting& call : calls) polled.push_back({call.fd(), POLLIN, 0});
    polled.push_back({interrupt_fd_, POLLIN, 0});
    ::poll(polled.data(), polled.size(), pausing ? std::min(left_ms, accept_pause_ms) : left_ms);
    if (polled.back().revents != 0) end_interrupted();
    for (std::size_t i = calls.size(); i-- > 0;) {
      if (polled[1 + callers.size() + i].revents == 0) continue;
      if (!finish(calls[i], sockets, peers)) continue;
      calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (std::size_t i = callers.size(); i-- > 0;) {
      if (polled[i + 1].revents == 0) continue;
      const GreetingState state = callers[i].go_on();
      if (state == GreetingState::Waiting) continue;
      if (state == GreetingState::Done) take(callers[i], sockets);
      if (!callers[i].why().empty()) turned_away_ = callers[i].why();
      // A stranger's connection is closed by this.
      callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (!pausing && polled[0].revents == 0) continue;
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const int error = socket ? 0 : errno;
    short_of = socket ? "" : shortage(error);
    if (error != EMFILE) {
      short_until = deadline;
    } else if (!pausing) {
      short_until = std::min(deadline, Clock::now() + own_shortage_patience);
    }
    if (!socket) continue;
    // Ranks speak at once: the one that has been silent longest is a stranger.
    if (callers.size() >= strangers_max + 2 * sockets.size()) callers.erase(callers.begin());
    callers.emplace_back(std::move(socket), epoch_, rank_, secret_, key_, encrypts_);
  }
}

// True when this call has come to its end; a call that failed ends all of it.
bool Mesh::finish(OutgoingGreeting& call, std::vector<PeerSockets>& sockets,
                  const std::vector<PeerAddress>& peers) const {
  const GreetingState state = call.go_on();
  if (state == GreetingState::Waiting) return false;
  const std::size_t peer = call.contact().callee;
  if (state == GreetingState::Failed) {
    throw CommunicatorError(
        "rank " + std::to_string(rank_) + " cannot connect to rank " + std::to_string(peer) +
        " at " + rendezvous::host_and_port(peers[peer].ip, peers[peer].port) + ": " + call.why());
  }
  PeerLink& place =
      call.contact().channel == MeshChannel::Data ? sockets[peer].data : sockets[peer].watch;
  place = call.take();
  return true;
}

std::vector<PeerSockets> Mesh::connect(const std::vector<PeerAddress>& peers,
                                       Clock::time_point deadline, int interrupt_fd,
                                       rendezvous::WaitWords words) {
  const WaitForOthers told_of;
  interrupt_fd_ = interrupt_fd;
  wait_ = rendezvous::LongWait(std::move(words), Clock::now());
  std::vector<PeerSockets> sockets(peers.size());
  std::vector<OutgoingGreeting> calls;
  for (int peer = 0; peer < rank_; ++peer) {
    const PeerAddress& address = peers[static_cast<std::size_t>(peer)];
    for (const MeshChannel channel : {MeshChannel::Data, MeshChannel::Watch}) {
      if (channel == MeshChannel::Data && !connects_data()) continue;
      calls.push_back(call(peer, address, channel, deadline));
      if (!key_ && finish(calls.back(), sockets, peers)) calls.pop_back();
    }
  }
  try {
    greet_all(calls, sockets, peers, deadline);
  } catch (const rendezvous::SecurityError& error) {
    throw CommunicatorError(error.what());
  }
  for (PeerSockets& pair : sockets) {
    if (pair.data) tune(pair.data.get(), false);
    if (pair.watch) tune(pair.watch.get(), true);
  }
  listener_ = UniqueFd();
  return sockets;
}

}  // namespace ddprun::worker
