// Puts the store's descriptors under Asio.
//
// The store keeps an epoll set of its own and gives Asio that one descriptor: a request then costs
// one recv and one send. Asio's own socket reads would add a recv that finds nothing, and its waits
// an epoll_ctl, to every request.
#include "rendezvous/server.h"

#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "rendezvous/store/accept_pace.h"
#include "rendezvous/store/linger_policy.h"
#include "rendezvous/store/own_addresses.h"
#include "rendezvous/store/peer_log.h"
#include "rendezvous/store/socket_owner.h"
#include "rendezvous/store/store_sessions.h"

namespace ddprun::rendezvous {
namespace {

using Clock = StoreSessions::Clock;

constexpr std::uint64_t listener_token = ~std::uint64_t{0};
constexpr int accepts_per_event_max = 256;
constexpr std::chrono::microseconds turn_max{
    1'000};  // Then the rest of the io_context has its turn.
constexpr std::chrono::milliseconds accept_pause{100};  // When descriptors have run out.
// A launcher gives what its limit leaves (descriptor_budget.h).
constexpr const char* raise_limit = " (raise the limit of open files, ulimit -n)";

UniqueFd make_epoll() {
  UniqueFd fd(epoll_create1(EPOLL_CLOEXEC));
  if (!fd.valid()) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  return fd;
}

}  // namespace

struct Server::Impl : std::enable_shared_from_this<Server::Impl> {
  Impl(asio::io_context& io_context, ServerOptions server_options, OnControl control)
      : io(io_context),
        options(std::move(server_options)),
        on_control(std::move(control)),
        listener(listen_socket(options.bind_address, options.port)),
        port(local_port(listener.get())),
        poller(io, make_epoll().release()),
        accept_timer(io),
        deadline_timer(io),
        sessions(options, poller.native_handle(),
                 {[this](UniqueFd fd, std::string received) {
                    hand_over(std::move(fd), std::move(received));
                  },
                  [this](int fd, const std::string& reason) { log_refused(fd, reason); }}) {
    watch_listener();
    if (!options.own_users_only) return;
    owners.emplace(listener.get());
    const std::string warning = owners->warning("port " + std::to_string(port), "connect");
    if (warning.empty()) return;
    spdlog::warn("{}", warning);
    owners.reset();
  }

  // Why a connection from this machine is turned away; "" when it is not. By whichever of the
  // machine's addresses it comes, so the kernel is asked of all connections: those from elsewhere
  // it does not know.
  std::string foreign(int fd, const asio::ip::address& from) {
    if (!owners) return "";
    const auto owner = owners->of_peer(fd);
    if (!owner) {
      if (!from.is_loopback() && !own_addresses.contains(from, Clock::now())) return "";
      return "it comes from this machine, but no process holds its other end";
    }
    if (is_own_user(*owner)) return "";
    return "it is of another user of this machine, uid " + std::to_string(*owner) +
           "; if it is a worker of this job, start ddprun as that user";
  }

  void watch_listener() {
    if (std::exchange(watched, true)) return;
    epoll_event event{.events = EPOLLIN, .data = {.u64 = listener_token}};
    if (epoll_ctl(poller.native_handle(), EPOLL_CTL_ADD, listener.get(), &event) != 0) {
      throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    }
  }

  void wait_for_events() {
    poller.async_wait(asio::posix::stream_descriptor::wait_read,
                      [self = shared_from_this()](const asio::error_code& error) {
                        if (!error) self->take_turn();
                      });
  }

  // Handles what is ready, for a bounded while.
  void take_turn() {
    std::array<epoll_event, 256> events;
    const auto began = Clock::now();
    auto now = began;
    int ready = 0;
    do {
      if (sessions.has_pending_wakes()) sessions.deliver_wakes();
      ready = epoll_wait(poller.native_handle(), events.data(), events.size(), 0);
      now = Clock::now();
      if (ready <= 0) {
        if (!linger.lingers(now, last_request)) break;
        sched_yield();  // Lets others run who have work.
        const auto before = std::exchange(now, Clock::now());
        linger.note_yield(before, now);
        continue;
      }
      for (int i = 0; i < ready && poller.is_open(); ++i) {
        if (events[i].data.u64 == listener_token) {
          accept_some(accepts_per_event_max);
        } else if (sessions.on_event(events[i].data.u64, events[i].events, now)) {
          last_request = now;
        }
      }
    } while (poller.is_open() && now - began < turn_max &&
             (ready > 0 || linger.lingers(now, last_request)));
    if (!poller.is_open()) return;
    arm_deadline_timer();
    if (ready > 0 || linger.lingers(now, last_request) || sessions.has_pending_wakes()) {
      asio::post(io, [self = shared_from_this()] {
        if (self->poller.is_open()) self->take_turn();
      });
    } else {
      wait_for_events();
    }
  }

  void accept_some(std::size_t count_max) {
    std::size_t strangers = 0;
    for (std::size_t count = 0; count < count_max && listener.valid(); ++count) {
      sockaddr_storage address{};
      socklen_t size = sizeof address;
      UniqueFd fd(accept4(listener.get(), reinterpret_cast<sockaddr*>(&address), &size,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.valid()) {
        if (take(std::move(fd), ip_address(address)) == Taken::AsStranger) ++strangers;
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        const auto rest = accept_pace.note(strangers, Clock::now());
        if (rest.count() > 0) rest_from_accepting(rest);
        return;
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return pause_accepting(errno);
      }  // Otherwise the connection was gone before it was accepted: on to the next.
    }
  }

  enum class Taken { Not, AsStranger, AsMember };
  Taken take(UniqueFd fd, const asio::ip::address& from) {
    if (const std::string why = foreign(fd.get(), from); !why.empty()) {
      log_refused(fd.get(), why);
      return Taken::Not;
    }
    const bool stranger = !sessions.permits(from);
    const std::size_t members = sessions.size() - sessions.strangers() - sessions.unproved();
    const std::size_t members_max = options.connections_max - options.unproved_max();
    if (!stranger && members >= members_max) {
      log_refused(fd.get(), std::to_string(members) +
                                " connections are open, of connections_max = " +
                                std::to_string(options.connections_max) + raise_limit);
    } else if (!stranger && sessions.size_from(from) >= options.connections_per_address_max) {
      log_refused(fd.get(), "connections_per_address_max = " +
                                std::to_string(options.connections_per_address_max) +
                                " connections of this address are open" + raise_limit);
    } else {
      const auto now = Clock::now();
      sessions.add(std::move(fd), from, now);
      if (stranger) return Taken::AsStranger;
      if (!options.proves) last_request = now;  // It comes with one.
      return Taken::AsMember;
    }
    return Taken::Not;
  }

  // Nobody is turned away: who comes now waits in the kernel's queue.
  void pause_accepting(int error) {
    if (peer_log.note("accept", Clock::now()).wanted) {
      spdlog::warn(
          "port {}: cannot accept connections: {}; trying again every {} ms (raise the "
          "limit of open files, ulimit -n)",
          port, std::strerror(error), accept_pause.count());
    }
    rest_from_accepting(accept_pause);
  }

  void rest_from_accepting(std::chrono::milliseconds time) {
    if (std::exchange(watched, false)) {
      epoll_ctl(poller.native_handle(), EPOLL_CTL_DEL, listener.get(), nullptr);
    }
    accept_timer.expires_after(time);
    accept_timer.async_wait([self = shared_from_this()](const asio::error_code& failed) {
      if (!failed && self->listener.valid()) self->watch_listener();
    });
  }

  // A timer that fires too early finds nothing to do: that is cheaper than to cancel it whenever a
  // command was completed.
  void arm_deadline_timer() {
    const auto deadline = sessions.deadline();
    if (deadline >= armed_for) return;
    armed_for = deadline;
    deadline_timer.expires_at(deadline);
    deadline_timer.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (error) return;
      self->armed_for = Clock::time_point::max();
      self->sessions.on_deadline(Clock::now());
      self->arm_deadline_timer();
    });
  }

  void hand_over(UniqueFd fd, std::string received) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    const auto protocol = address.ss_family == AF_INET ? asio::ip::tcp::v4() : asio::ip::tcp::v6();
    asio::ip::tcp::socket socket(io);
    asio::error_code error;
    socket.assign(protocol, fd.get(), error);
    if (error) return log_refused(fd.get(), error.message());
    fd.release();
    on_control(std::move(socket), std::move(received));
  }

  void log_refused(int fd, const std::string& reason) {
    const std::string peer = peer_name(fd);
    const PeerLog::Line line = peer_log.note(peer, Clock::now());
    if (!line.wanted) return;
    spdlog::warn("store on port {}: closed the connection of {}: {}{}", port, peer, reason,
                 uncounted(line));
  }

  void recheck_access() {
    sessions.recheck_access(Clock::now());
    arm_deadline_timer();
  }

  void start_attempt(const std::string& name) {
    sessions.start_attempt(name);
    // Those in the kernel's queue connected before this moment, too.
    accept_some(options.connections_max);
    sessions.start_attempt(name);
  }

  void close() {
    listener.reset();
    sessions.close_all();
    accept_timer.cancel();
    deadline_timer.cancel();
    asio::error_code ignored;
    poller.close(ignored);
  }

  asio::io_context& io;
  const ServerOptions options;
  const OnControl on_control;
  UniqueFd listener;
  const std::uint16_t port;
  bool watched = false;  // The listener, by the poller.
  AcceptPace accept_pace;
  asio::posix::stream_descriptor poller;  // The epoll set of listener and connections.
  asio::steady_timer accept_timer;
  asio::steady_timer deadline_timer;
  Clock::time_point armed_for = Clock::time_point::max();
  std::optional<SocketOwner> owners;
  OwnAddresses own_addresses;
  LingerPolicy linger;
  // Of somebody whom the store serves. To look for more from strangers would let each of their
  // connections take a processor for as long as LingerPolicy::linger.
  Clock::time_point last_request{};
  PeerLog peer_log;
  StoreSessions sessions;
};

Server::Server(asio::io_context& io, ServerOptions options, OnControl on_control)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(on_control))) {
  impl_->wait_for_events();
}

Server::~Server() { close(); }

std::uint16_t Server::port() const { return impl_->port; }

void Server::start_attempt(const std::string& name) { impl_->start_attempt(name); }

void Server::recheck_access() { impl_->recheck_access(); }

std::optional<std::int64_t> Server::number(std::string_view key) const {
  return impl_->sessions.store().number(key);
}

void Server::close() { impl_->close(); }

}  // namespace ddprun::rendezvous
