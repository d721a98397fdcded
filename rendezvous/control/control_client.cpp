// Nodes start in any order, so to find nobody is normal for a while and no error: each try is
// quiet, and the log says what is waited for only when that changes or a while has passed.
#include "rendezvous/control/control_client.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <utility>

#include "rendezvous/control/control_connection.h"
#include "rendezvous/control/liveness.h"
#include "rendezvous/control/resolve.h"
#include "rendezvous/host_and_port.h"
#include "rendezvous/store/socket_owner.h"
#include "rendezvous/time_text.h"

namespace ddprun::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Milliseconds first_pause{50};  // Between two tries; doubles up to pause_max.
constexpr Milliseconds pause_max{1'000};
constexpr Milliseconds try_limit{5'000};     // For one address to answer.
constexpr Milliseconds proof_limit{10'000};  // For TLS, after the connection was made.
constexpr Milliseconds log_repeat{10'000};   // How often an unchanged reason is logged again.

bool has_ended(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
         info.tcpi_state != TCP_ESTABLISHED;
}

std::int64_t whole_seconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

struct ControlClient::Impl : std::enable_shared_from_this<ControlClient::Impl> {
  Impl(asio::io_context& io_, ControlClientOptions options_, ControlClientCallbacks callbacks_)
      : io(io_),
        options(std::move(options_)),
        callbacks(std::move(callbacks_)),
        beat(io_),
        proof(io_),
        answer(io_) {}

  void start_connecting(const std::string& why = {});
  asio::awaitable<void> connect(std::string why);
  asio::awaitable<std::string> try_once();
  asio::awaitable<std::string> try_address(std::string address);
  void give_up(const std::string& why);
  void log_wait(const std::string& why);
  void connected_as(asio::ip::tcp::socket socket);
  void on_line(std::string_view line);
  void on_welcome(const Welcome& welcome);
  void schedule_beat();
  void limit_proof();
  void limit_answer();
  void on_closed(const std::string& why);
  void connect_again(const std::string& why);
  bool refused_key();
  bool is_foreign(const ControlMessage& message);
  void lost(const std::string& why, bool silent = false);
  // This client is over: nothing is sent, heard or waited for any more.
  void stop();
  std::string endpoint() const { return host_and_port(options.host, options.port); }
  // Rounded up: of the time that a name's look-up has taken people need no milliseconds.
  std::int64_t limit_s() const {
    return std::chrono::ceil<std::chrono::seconds>(options.join_timeout).count();
  }

  asio::io_context& io;
  ControlClientOptions options;
  ControlClientCallbacks callbacks;
  std::shared_ptr<ControlConnection> connection;
  asio::steady_timer beat;
  asio::steady_timer proof;
  asio::steady_timer answer;
  const TimePoint started = Clock::now();
  Milliseconds pause = first_pause;  // Before the next try.
  Milliseconds beat_interval{0};
  TimePoint next_beat;
  std::optional<Liveness> liveness;  // Once welcomed.
  std::string closed_unanswered;     // How the last connection ended before this one.
  std::string last_logged;
  TimePoint last_logged_at;
  bool on_this_machine =
      false;  // Asked while it is connected: of one that is not the kernel tells nothing.
  bool trusted = false;   // Of our own user, as far as the kernel tells, or it has the secret.
  bool answered = false;  // The other end has proved to be a coordinator.
  bool closed = false;
};

// `why`: a try that has failed.
asio::awaitable<void> ControlClient::Impl::connect(std::string why) {
  const auto self = shared_from_this();  // Whatever happens, we outlive this coroutine.
  asio::steady_timer timer(io);
  while (true) {
    if (why.empty()) why = co_await try_once();
    if (closed || connection) co_return;
    const auto waited = Clock::now() - started;
    if (waited >= options.join_timeout) {
      give_up(why);
      co_return;
    }
    log_wait(why);
    timer.expires_after(std::min<Clock::duration>(pause, options.join_timeout - waited));
    asio::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    if (closed) co_return;
    pause = std::min(pause * 2, pause_max);
    why.clear();
  }
}

// Returns why it could not connect; when it could, `connection` is set.
asio::awaitable<std::string> ControlClient::Impl::try_once() {
  const Resolved resolved = co_await resolve(options.host);
  if (resolved.addresses.empty()) {
    co_return fmt::format("cannot resolve the host name \"{}\": {}", options.host, resolved.error);
  }
  if (closed) co_return "";
  if (callbacks.on_addresses && callbacks.on_addresses(resolved.addresses)) {
    stop();
    co_return "";
  }
  std::string why;
  for (const std::string& address : resolved.addresses) {
    why = co_await try_address(address);
    if (closed || connection) co_return "";
    if (address != options.host) why += " at " + address;
  }
  co_return why;
}

asio::awaitable<std::string> ControlClient::Impl::try_address(std::string address) {
  asio::ip::tcp::socket socket(io);
  asio::steady_timer limit(io, try_limit);
  bool timed_out = false;
  limit.async_wait([&](const asio::error_code& error) {
    if (error) return;
    timed_out = true;
    asio::error_code ignored;
    socket.close(ignored);
  });
  asio::error_code error;
  const asio::ip::tcp::endpoint target(asio::ip::make_address(address), options.port);
  co_await socket.async_connect(target, asio::redirect_error(asio::use_awaitable, error));
  // The wait's handler refers to this frame: if it is already queued, the frame must outlive it.
  if (limit.cancel() == 0 && !timed_out) {
    asio::error_code ignored;
    limit.expires_after(Milliseconds(0));
    co_await limit.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  if (timed_out) co_return fmt::format("no answer for {} s", whole_seconds(try_limit));
  if (error == asio::error::connection_refused) co_return "connection refused";
  if (error) co_return error.message();
  // A connection to a free local port can meet itself (both ends the same) and must not count.
  asio::error_code ignored;
  if (socket.local_endpoint(ignored) == socket.remote_endpoint(ignored)) {
    co_return "connection refused";
  }
  if (!closed) connected_as(std::move(socket));
  co_return "";
}

void ControlClient::Impl::give_up(const std::string& why) {
  stop();
  callbacks.on_unreachable(fmt::format("{} at {} did not answer within {} s: {}",
                                       options.waiting_for, endpoint(), limit_s(), why));
}

void ControlClient::Impl::log_wait(const std::string& why) {
  const TimePoint now = Clock::now();
  if (why == last_logged && now - last_logged_at < log_repeat) return;
  last_logged = why;
  last_logged_at = now;
  spdlog::info("waiting for {} at {} ({}), {} s of {} s", options.waiting_for, endpoint(), why,
               whole_seconds(now - started), limit_s());
}

void ControlClient::Impl::connected_as(asio::ip::tcp::socket socket) {
  std::unique_ptr<TlsSession> tls;
  if (options.tls) tls = std::make_unique<TlsSession>(options.tls, TlsSession::Role::Client);
  on_this_machine = SocketOwner::is_local(socket.native_handle());
  connection = std::make_shared<ControlConnection>(std::move(socket), "", std::move(tls));
  const std::weak_ptr<Impl> weak = weak_from_this();
  connection->start(
      [weak](std::string_view line) {
        if (const auto self = weak.lock()) self->on_line(line);
      },
      [weak](const std::string& why) {
        if (const auto self = weak.lock()) self->on_closed(why);
      });
  if (options.tls) limit_proof();
  limit_answer();
  if (options.hello.address.empty()) options.hello.address = connection->local_address();
  connection->send(options.hello);
}

// A program that takes connections and says nothing must not hold an agent for ever.
void ControlClient::Impl::limit_proof() {
  proof.expires_after(proof_limit);
  proof.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!self || error || !self->connection || self->connection->proved()) return;
    self->lost(fmt::format("it did not answer TLS for {} s", whole_seconds(proof_limit)));
  });
}

// Before its first line nobody beats: a machine that lost power just after it took the connection
// would be waited for without an end. No shorter: who is stopped or overloaded answers late.
void ControlClient::Impl::limit_answer() {
  answer.expires_at(started + options.join_timeout);
  answer.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!self || error || self->closed || self->answered || !self->connection) return;
    if (!self->closed_unanswered.empty()) return self->give_up(self->closed_unanswered);
    self->stop();
    self->callbacks.on_unreachable(
        fmt::format("{} at {} took the connection, but did not answer within {} s; is a ddprun of "
                    "this job listening there, and its machine alive?",
                    self->options.waiting_for, self->endpoint(), self->limit_s()));
  });
}

void ControlClient::Impl::on_closed(const std::string& why) {
  if (refused_key()) return;
  // Nobody has answered yet, so nobody is lost. A coordinator closes a connection like this when
  // its process is just ending, to be started again, or when strangers crowd it; something else
  // that listens there says a word that is not of this protocol, as a rule, and is told of. Who was
  // just elected and is gone must be followed by the next one at once.
  const bool unanswered = !closed && !answered && connection->tls_failure() == TlsFailure::None;
  if (unanswered && !options.hello.resumes) return connect_again(why);
  lost(why);
}

void ControlClient::Impl::start_connecting(const std::string& why) {
  asio::co_spawn(
      io, [self = shared_from_this(), why] { return self->connect(why); },
      [self = shared_from_this()](const std::exception_ptr& thrown) {
        if (!thrown || self->closed) return;
        try {
          std::rethrow_exception(thrown);
        } catch (const std::exception& error) {  // Told, or the launcher would wait for ever.
          self->lost(error.what());
        }
      });
}

// Not from inside the callback of the connection that goes.
void ControlClient::Impl::connect_again(const std::string& why) {
  proof.cancel();
  answer.cancel();
  asio::post(io, [weak = weak_from_this(), why] {
    const auto self = weak.lock();
    if (!self || self->closed) return;
    self->connection.reset();
    self->closed_unanswered =
        why + " before it answered; another program, such as torchrun, may listen there";
    self->start_connecting(self->closed_unanswered);
  });
}

// To try again would not help: the verdict of both ends is final, as with any other refusal.
bool ControlClient::Impl::refused_key() {
  const TlsFailure failure = connection->tls_failure();
  if (closed || connection->proved()) return false;
  if (failure != TlsFailure::WrongKey && failure != TlsFailure::PlainPeer) return false;
  stop();
  callbacks.on_message(Refused{
      .reason =
          failure == TlsFailure::PlainPeer
              ? fmt::format("the job at {} runs without a secret: if that is meant so, give --auth "
                            "none here as well",
                            endpoint())
              : fmt::format("this node's secret or job id is not that of the job at {}{}",
                            endpoint(), options.secret_advice)});
  return true;
}

void ControlClient::Impl::on_line(std::string_view line) {
  if (closed) return;
  ParsedLine parsed = parse_control_message(line);
  if (!parsed.message) return lost("it sent a bad line: " + parsed.error);
  ControlMessage& message = *parsed.message;
  if (is_foreign(message)) return;
  answered = true;
  answer.cancel();
  if (liveness) liveness->heard(Clock::now());
  if (std::holds_alternative<Heartbeat>(message)) return;
  if (const auto* welcome = std::get_if<Welcome>(&message)) on_welcome(*welcome);
  if (auto* refused = std::get_if<Refused>(&message)) refused->reason += " (" + endpoint() + ")";
  callbacks.on_message(message);
}

// True: the message must not be followed. With a secret the other end has proved more than whose it
// is. Before its first line the kernel could not be asked: until a listening process accepts a
// connection, it is nobody's.
bool ControlClient::Impl::is_foreign(const ControlMessage& message) {
  if (trusted) return false;
  const int fd = connection->native_handle();
  const auto owner = on_this_machine && !options.tls ? SocketOwner(fd).of_peer(fd) : std::nullopt;
  if (owner && !is_own_user(*owner)) {
    stop();
    callbacks.on_message(
        Refused{.reason = fmt::format(
                    "{} at {} is not taken for the coordinator of this job: another user of this "
                    "machine (uid {}) listens there; choose another port, or prove who is who "
                    "with --auth secret on all nodes",
                    options.waiting_for, endpoint(), *owner)});
    return true;
  }
  // The kernel does not tell in some containers, and not of an address that is translated. But to
  // speak and close at once must not be a way round the question; what ends a job may come so from
  // anybody, what starts workers may not.
  trusted = owner || options.tls || !on_this_machine || !has_ended(fd);
  if (trusted || !std::holds_alternative<RoundStart>(message)) return false;
  lost("it closed the connection before it could be asked whose it is");
  return true;
}

void ControlClient::Impl::on_welcome(const Welcome& welcome) {
  beat_interval = Milliseconds(welcome.heartbeat_interval_ms);
  if (beat_interval.count() == 0) return;
  liveness.emplace(Milliseconds(welcome.heartbeat_timeout_ms), Clock::now());
  next_beat = Clock::now() + beat_interval;
  schedule_beat();
}

void ControlClient::Impl::schedule_beat() {
  beat.expires_at(std::min(next_beat, liveness->deadline()));
  beat.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!self || error || self->closed) return;
    const TimePoint now = Clock::now();
    if (self->liveness->silent(now, now - self->beat.expiry())) {
      const auto silence = self->liveness->silence(now);
      return self->lost("nothing heard from it for " +
                            time_text(std::chrono::duration_cast<Milliseconds>(silence)),
                        /*silent=*/true);
    }
    if (now >= self->next_beat) {
      self->connection->send(Heartbeat{});
      self->next_beat = now + self->beat_interval;
    }
    self->schedule_beat();
  });
}

void ControlClient::Impl::lost(const std::string& why, bool silent) {
  if (closed) return;
  stop();
  callbacks.on_lost(fmt::format("{} at {}: {}{}", options.waiting_for, endpoint(), why,
                                answered ? "" : "; is a ddprun of this job listening there?"),
                    silent);
}

void ControlClient::Impl::stop() {
  closed = true;
  beat.cancel();
  proof.cancel();
  answer.cancel();
  if (connection) connection->close();
}

ControlClient::ControlClient(asio::io_context& io, ControlClientOptions options,
                             ControlClientCallbacks callbacks)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(callbacks))) {
  impl_->start_connecting();
}

ControlClient::~ControlClient() { impl_->stop(); }

void ControlClient::send(const ControlMessage& message) {
  if (impl_->connection && !impl_->closed) impl_->connection->send(message);
}

bool ControlClient::connected() const { return impl_->connection != nullptr && !impl_->closed; }

std::string ControlClient::remote_address() const {
  return connected() ? impl_->connection->remote_address() : "";
}

std::uint16_t ControlClient::remote_port() const {
  return connected() ? impl_->options.port : std::uint16_t{0};
}

}  // namespace ddprun::rendezvous
