// The shell around Job: sockets, timers and the log on one side, a state machine that knows none of
// them on the other. Nothing is decided here but who may say something at all.
#include "rendezvous/coordinator.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "rendezvous/control/control_connection.h"
#include "rendezvous/first_byte.h"
#include "rendezvous/store/peer_log.h"
#include "rendezvous/store/socket_owner.h"
#include "rendezvous/store/store_socket.h"

namespace ddprun::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds answer_limit{10};       // For a hello, and for leaving when refused.
constexpr std::size_t stranger_bytes_max = 16u << 10;  // A hello has some hundred.
constexpr std::size_t last_bytes_max = 64u << 10;      // Of who was told to go.
constexpr std::chrono::seconds look_limit{40};         // For the answer to who looks at the job.
constexpr int looks_at_once_max = 16;

std::string host_of(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  return error ? "" : host_key(endpoint.address());
}

// All that a stranger is told. Agents from before the secret understand it, too.
constexpr const char* needs_secret =
    "this job needs its secret: give this node the file that the job's other nodes have "
    "(--secret-file, ~/.config/ddprun/secret), and a ddprun that knows --secret-file";
constexpr const char* has_no_secret =
    "this job runs without a secret: if that is meant so, give --auth none here as well";

}  // namespace

struct Coordinator::Impl : std::enable_shared_from_this<Coordinator::Impl> {
  struct Peer {
    std::shared_ptr<ControlConnection> connection;
    std::string remote_name;                    // Kept for when it is gone ...
    std::string host;                           // ... and so is this.
    std::unique_ptr<asio::steady_timer> limit;  // For its hello, our answer or its goodbye.
    std::vector<std::string> addresses;         // Known with its hello.
    bool has_said_hello = false;
    bool dismissed = false;  // Was told to go; nobody waits for it any more.
    bool looks = false;      // Has asked, and takes no part in the job.
  };

  Impl(asio::io_context& io_, CoordinatorCallbacks callbacks_, Strangers::Limits stranger_limits,
       std::shared_ptr<const TlsContext> tls_)
      : io(io_),
        tls(std::move(tls_)),
        callbacks(std::move(callbacks_)),
        strangers(stranger_limits),
        tick(io_),
        idle_timer(io_) {}

  void adopt(asio::ip::tcp::socket socket, std::string received);
  void hear(PeerId id, bool speaks_plain, bool speaks_tls);
  void refuse_unproved(PeerId id, const char* reason);
  void limit(Peer& peer, PeerId id, const char* complaint,
             std::chrono::seconds time = answer_limit);
  void dismiss(PeerId id);
  void on_line(PeerId id, std::string_view line);
  void look(PeerId id, const Query& query);
  std::string why_not_to_look(Peer& peer, const Query& query) const;
  void tell(PeerId id, int number, const std::string& text);
  void end_gathering(int number);
  template <class Question>
  void answer(PeerId id, const Question& question,
              const std::function<Vote(const Question&)>& callback);
  void on_closed(PeerId id, const std::string& why);
  void drop(PeerId id, const std::string& why);
  void log_stranger(const std::string& name, const std::string& what);
  // Workers do not tell us, but the store: so that a dying one has said it, whoever of the two
  // is heard first.
  void ask_progress() {
    if (callbacks.progress) job->on_progress(callbacks.progress());
  }
  void carry_out(JobActions actions);
  void tell_members(const Members& members);
  void schedule_tick();
  void check_idle();
  void close();

  asio::io_context& io;
  const std::shared_ptr<const TlsContext> tls;  // Null: no key is asked for.
  std::optional<Job> job;                       // Nothing on standby.
  CoordinatorCallbacks callbacks;
  std::map<PeerId, Peer> peers;
  Strangers strangers;  // Those of peers that have not been welcomed.
  PeerLog refusals;
  PeerId next_id = 1;
  asio::steady_timer tick;
  TimePoint tick_at = TimePoint::max();
  asio::steady_timer idle_timer;
  std::function<void()> on_idle;

  // What other nodes were asked, by number.
  struct Asked {
    Gathering gathering;
    std::unique_ptr<asio::steady_timer> limit;
    std::function<void(const std::vector<NodeTold>&)> done;
    bool brief = false;  // Its time is so short that who was late once is not waited for again.
  };
  std::map<int, Asked> asked;
  int next_number = 1;
  Gathering::Late late;
};

void Coordinator::Impl::adopt(asio::ip::tcp::socket socket, std::string received) {
  // Never the address of a Peer, nor a number used twice: a callback that is still queued for a
  // connection must not hit the next one.
  const PeerId id = next_id++;
  const std::string host = host_of(socket);
  if (const auto oldest = strangers.add(id, host, Clock::now())) {
    drop(*oldest, "it had not been let in, and others came");
  }
  Peer& peer = peers[id];
  peer.host = host;
  const bool speaks_tls = !received.empty() && received.front() == tls_first_byte;
  const bool speaks_plain = !received.empty() && !speaks_tls;
  std::unique_ptr<TlsSession> session;
  if (tls && !speaks_plain) session = std::make_unique<TlsSession>(tls, TlsSession::Role::Server);
  peer.connection = std::make_shared<ControlConnection>(std::move(socket), std::move(received),
                                                        std::move(session));
  peer.connection->limit_input(stranger_bytes_max);
  peer.remote_name = peer.connection->remote_name();
  const auto pause = strangers.pause(host, Clock::now());
  if (pause.count() == 0) return hear(id, speaks_plain, speaks_tls);
  // Not even its bytes are looked at before: what they cost is what is bounded.
  peer.limit = std::make_unique<asio::steady_timer>(io, pause);
  peer.limit->async_wait(
      [weak = weak_from_this(), id, speaks_plain, speaks_tls](const asio::error_code& error) {
        const auto self = weak.lock();
        if (self && !error) self->hear(id, speaks_plain, speaks_tls);
      });
}

void Coordinator::Impl::hear(PeerId id, bool speaks_plain, bool speaks_tls) {
  const auto found = peers.find(id);
  if (found == peers.end()) return;
  Peer& peer = found->second;
  if (tls ? speaks_plain : speaks_tls) {
    return refuse_unproved(id, tls ? needs_secret : has_no_secret);
  }
  limit(peer, id, "no hello came from it");
  const std::weak_ptr<Impl> weak = weak_from_this();
  peer.connection->start(
      [weak, id](std::string_view line) {
        if (const auto self = weak.lock()) self->on_line(id, line);
      },
      [weak, id](const std::string& why) {
        if (const auto self = weak.lock()) self->on_closed(id, why);
      });
}

// In plain lines, whatever it spoke: an agent knows its own end by the first byte.
void Coordinator::Impl::refuse_unproved(PeerId id, const char* reason) {
  const auto& connection = peers[id].connection;
  strangers.note_refused(peers[id].host, Clock::now());
  log_stranger(
      peers[id].remote_name,
      tls ? "refused: it does not prove the job's secret (an older ddprun, or --auth none there)"
          : "refused: it asks for the job's secret, and this job has none (--auth none here)");
  connection->start([](std::string_view) {},
                    [weak = weak_from_this(), id](const std::string& why) {
                      if (const auto self = weak.lock()) self->on_closed(id, why);
                    });
  connection->send(Refused{.reason = reason});
  dismiss(id);
}

void Coordinator::Impl::limit(Peer& peer, PeerId id, const char* complaint,
                              std::chrono::seconds time) {
  peer.limit = std::make_unique<asio::steady_timer>(io, time);
  peer.limit->async_wait([weak = weak_from_this(), id, complaint](const asio::error_code& error) {
    const auto self = weak.lock();
    if (self && !error) self->drop(id, complaint);
  });
}

void Coordinator::Impl::dismiss(PeerId id) {
  const auto found = peers.find(id);
  if (found == peers.end()) return;
  found->second.dismissed = true;
  found->second.connection->close_after_sending();
  found->second.connection->limit_input(last_bytes_max);
  limit(found->second, id, "it did not go when it was told to");
}

void Coordinator::Impl::on_line(PeerId id, std::string_view line) {
  const auto found = peers.find(id);
  // Who was dismissed is not heard: its lines would come to the job as a stranger's, each refused
  // and logged, and each refusal would give it another 10 s.
  if (found == peers.end() || found->second.dismissed) return;
  ParsedLine parsed = parse_control_message(line);
  if (!parsed.message) return drop(id, "it sent a bad line: " + parsed.error);
  if (const auto* ask = std::get_if<AskVote>(&*parsed.message)) {
    return answer(id, *ask, callbacks.on_ask);
  }
  if (const auto* leads = std::get_if<Leads>(&*parsed.message)) {
    return answer(id, *leads, callbacks.on_leads);
  }
  if (!job || job->stepped_down()) {
    found->second.connection->send(callbacks.where ? callbacks.where() : Moved{});
    return dismiss(id);
  }
  if (const auto* query = std::get_if<Query>(&*parsed.message)) return look(id, *query);
  if (const auto* told = std::get_if<Told>(&*parsed.message)) {
    std::erase(late.peers, id);  // Be it for an earlier question: it answers.
    const auto question = asked.find(told->number);
    if (question != asked.end()) {
      question->second.gathering.hear(id, *told);
      if (question->second.gathering.complete()) end_gathering(told->number);
    }
  }
  if (auto* hello = std::get_if<Hello>(&*parsed.message)) {
    found->second.has_said_hello = true;
    found->second.limit.reset();
    const std::string remote = found->second.connection->remote_address();
    hello->from = remote;
    // As we see it is how the others reach it too, unless it knows better (several networks).
    if (hello->address.empty()) hello->address = remote;
    found->second.addresses = {remote};
    // What a stranger announces could be anybody's address, and would open the store to it.
    if (tls && found->second.connection->proved())
      found->second.addresses.push_back(hello->address);
  }
  ask_progress();
  carry_out(job->on_message(id, *parsed.message, Clock::now()));
}

// ---- who looks at the job ----

// "" = it may. Without a secret everybody who knows the job's name could read what workers wrote:
// then only who is on this machine is told, and of those the port has sent away other users.
std::string Coordinator::Impl::why_not_to_look(Peer& peer, const Query& query) const {
  if (!callbacks.on_query) return "nobody here tells how the job is doing";
  if (!tls && !SocketOwner::is_local(peer.connection->native_handle())) {
    return "this job runs without a secret, so that only who is on the machine of its coordinator "
           "is told how it is doing: ask there";
  }
  if (query.run_id != job->run_id()) return "a job of another id runs here: give its --rdzv-id";
  const auto others = std::count_if(peers.begin(), peers.end(), [](const auto& entry) {
    return entry.second.looks && !entry.second.dismissed;
  });
  return others >= looks_at_once_max ? "too many look at this job just now: try again" : "";
}

void Coordinator::Impl::look(PeerId id, const Query& query) {
  Peer& peer = peers.at(id);
  if (peer.looks) return drop(id, "it asks again before it is answered");
  const std::string why = why_not_to_look(peer, query);
  peer.looks = true;
  if (!why.empty()) {
    strangers.note_refused(peer.host, Clock::now());
    log_stranger(peer.remote_name, "refused a look at the job: " + why);
    peer.connection->send(Refused{.reason = why});
    return dismiss(id);
  }
  strangers.remove(id);
  limit(peer, id, "the answer to it took too long", look_limit);
  callbacks.on_query(query,
                     [weak = weak_from_this(), id, number = query.number](const std::string& text) {
                       if (const auto self = weak.lock()) self->tell(id, number, text);
                     });
}

void Coordinator::Impl::tell(PeerId id, int number, const std::string& text) {
  const auto found = peers.find(id);
  if (found == peers.end() || found->second.dismissed) return;
  if (text.size() > answer_bytes_max) {
    found->second.connection->send(Refused{.reason = "the answer is too long to be sent"});
    return dismiss(id);
  }
  for (Told& piece : told_pieces(number, text)) found->second.connection->send(std::move(piece));
  dismiss(id);
}

void Coordinator::Impl::end_gathering(int number) {
  auto ended = asked.extract(number);
  if (ended.mapped().brief) late = ended.mapped().gathering.late();
  // Not from inside of whoever asks, which may be in the middle of something.
  asio::post(io, [done = std::move(ended.mapped().done), nodes = ended.mapped().gathering.nodes()] {
    done(nodes);
  });
}

template <class Question>
void Coordinator::Impl::answer(PeerId id, const Question& question,
                               const std::function<Vote(const Question&)>& callback) {
  if (!callback) return drop(id, "it speaks of takeovers, and this job has none");
  peers.at(id).connection->send(callback(question));
  dismiss(id);
}

void Coordinator::Impl::on_closed(PeerId id, const std::string& why) {
  const auto found = peers.find(id);
  if (found == peers.end()) return;
  // Who never proved the key is no matter of the job's.
  const bool stranger = !found->second.connection->proved();
  if (stranger && found->second.connection->tls_failure() != TlsFailure::None) {
    const bool wrong_key = found->second.connection->tls_failure() == TlsFailure::WrongKey;
    log_stranger(found->second.remote_name,
                 "refused: " + why +
                     (wrong_key ? " and id; if it is a node of this job, copy this node's secret "
                                  "file to it, and give both the same --rdzv-id"
                                : ""));
  }
  if (stranger) strangers.note_refused(found->second.host, Clock::now());
  peers.erase(found);
  strangers.remove(id);
  std::vector<int> complete;
  for (auto& [number, question] : asked) {
    question.gathering.gone(id);
    if (question.gathering.complete()) complete.push_back(number);
  }
  for (const int number : complete) end_gathering(number);
  if (stranger || !job) return check_idle();
  ask_progress();
  carry_out(job->on_lost(id, why, Clock::now()));
  check_idle();
}

void Coordinator::Impl::drop(PeerId id, const std::string& why) {
  const auto found = peers.find(id);
  if (found == peers.end()) return;
  log_stranger(found->second.remote_name, "closed its control connection: " + why);
  found->second.connection->close();
  on_closed(id, why);
}

// Whoever reaches the port can be refused as often as he likes; the log must not grow with it.
void Coordinator::Impl::log_stranger(const std::string& name, const std::string& what) {
  const PeerLog::Line line = refusals.note(name, Clock::now());
  if (line.wanted) spdlog::warn("from {}: {}{}", name, what, uncounted(line));
}

// In order: the store is emptied before anybody hears that an attempt starts, and a node's address
// may use the store before the node hears that it has workers to start.
void Coordinator::Impl::carry_out(JobActions actions) {
  for (JobAction& action : actions) {
    if (const auto* send = std::get_if<SendTo>(&action)) {
      const auto peer = peers.find(send->peer);
      if (peer == peers.end()) continue;
      if (std::holds_alternative<Welcome>(send->message)) {
        strangers.remove(send->peer);
        peer->second.connection->limit_input(std::numeric_limits<std::size_t>::max());
      }
      peer->second.connection->send(send->message);
    } else if (const auto* end = std::get_if<CloseAfterSending>(&action)) {
      dismiss(end->peer);
    } else if (const auto* start = std::get_if<StartAttempt>(&action)) {
      callbacks.on_start_attempt(start->round);
    } else if (const auto* wanted = std::get_if<AskForWord>(&action)) {
      if (callbacks.on_word_wanted) callbacks.on_word_wanted(wanted->wish);
    } else if (const auto* members = std::get_if<Members>(&action)) {
      tell_members(*members);
    } else if (const auto* log = std::get_if<Log>(&action)) {
      const auto stranger = log->stranger ? peers.find(*log->stranger) : peers.end();
      if (stranger != peers.end()) {
        log_stranger(stranger->second.remote_name, log->text);
      } else {
        spdlog::log(log->level == Log::Level::Warning ? spdlog::level::warn : spdlog::level::info,
                    "{}", log->text);
      }
    }
  }
  schedule_tick();
}

void Coordinator::Impl::tell_members(const Members& members) {
  if (!callbacks.on_members) return;
  std::vector<std::string> addresses;
  for (const PeerId id : members.peers) {
    const auto peer = peers.find(id);
    if (peer == peers.end()) continue;
    addresses.insert(addresses.end(), peer->second.addresses.begin(), peer->second.addresses.end());
  }
  callbacks.on_members(addresses);
}

void Coordinator::Impl::schedule_tick() {
  const TimePoint due = job->next_tick().value_or(TimePoint::max());
  // Nearly every message moves a deadline that lies far away; the timer is only touched when the
  // next one does.
  if (due == tick_at) return;
  tick_at = due;
  tick.cancel();
  if (due == TimePoint::max()) return;
  tick.expires_at(due);
  tick.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!self || error || !self->job) return;
    self->tick_at = TimePoint::max();
    self->ask_progress();
    self->carry_out(self->job->on_tick(Clock::now()));
  });
}

// Who was refused is not waited for, nor who has not said whose it is, proved or not: a stranger
// must not be able to keep the job from ending.
void Coordinator::Impl::check_idle() {
  const bool busy = std::any_of(peers.begin(), peers.end(), [](const auto& entry) {
    return entry.second.has_said_hello && !entry.second.dismissed;
  });
  if (busy || !on_idle) return;
  idle_timer.cancel();
  asio::post(io, std::exchange(on_idle, nullptr));
}

void Coordinator::Impl::close() {
  tick.cancel();
  idle_timer.cancel();
  for (auto& [id, peer] : peers) peer.connection->close();
  peers.clear();
  asked.clear();
}

Coordinator::Coordinator(asio::io_context& io, JobLimits limits, CoordinatorCallbacks callbacks,
                         Strangers::Limits strangers, std::shared_ptr<const TlsContext> tls)
    : Coordinator(io, std::move(callbacks), strangers, std::move(tls)) {
  impl_->job.emplace(std::move(limits), Clock::now());
  impl_->schedule_tick();
}

Coordinator::Coordinator(asio::io_context& io, CoordinatorCallbacks callbacks,
                         Strangers::Limits strangers, std::shared_ptr<const TlsContext> tls)
    : impl_(std::make_shared<Impl>(io, std::move(callbacks), strangers, std::move(tls))) {}

void Coordinator::lead(JobLimits limits, const Inherited& inherited) {
  const auto now = Clock::now();
  impl_->job.emplace(std::move(limits), inherited, now);
  impl_->carry_out(impl_->job->take_over(inherited, now));
}

void Coordinator::step_down(const std::string& why) {
  if (impl_->job) impl_->carry_out(impl_->job->step_down(why));
}

bool Coordinator::stepped_down() const { return impl_->job && impl_->job->stepped_down(); }

void Coordinator::stand_by() {
  impl_->job.reset();
  impl_->tick.cancel();
  impl_->tick_at = TimePoint::max();
}

void Coordinator::on_word(const Word& word) {
  if (impl_->job) impl_->carry_out(impl_->job->on_word(word, Clock::now()));
}

void Coordinator::ask_nodes(Query query, std::chrono::milliseconds limit,
                            std::function<void(const std::vector<NodeTold>& nodes)> done) {
  Impl& impl = *impl_;
  query.number = impl.next_number++;
  auto nodes = impl.job ? impl.job->nodes(Clock::now()) : std::vector<NodeTold>{};
  const bool brief = query.what == "snapshot";
  Impl::Asked question{
      Gathering(query.number, std::move(nodes), brief ? impl.late : Gathering::Late{}),
      std::make_unique<asio::steady_timer>(impl.io, limit), std::move(done), brief};
  for (const PeerId peer : question.gathering.to_ask()) {
    const auto found = impl.peers.find(peer);
    if (found == impl.peers.end()) {
      question.gathering.gone(peer);
    } else {
      found->second.connection->send(query);
    }
  }
  question.limit->async_wait(
      [weak = std::weak_ptr(impl_), number = query.number](const asio::error_code& error) {
        const auto self = weak.lock();
        if (self && !error && self->asked.contains(number)) self->end_gathering(number);
      });
  const bool complete = question.gathering.complete();
  impl.asked.emplace(query.number, std::move(question));
  if (complete) impl.end_gathering(query.number);
}

std::vector<std::string> Coordinator::came_to() const {
  std::vector<std::string> addresses;
  for (const auto& [id, peer] : impl_->peers) {
    if (!peer.has_said_hello || peer.dismissed) continue;
    std::string address = peer.connection->local_address();
    // Who comes from this machine to an address of it comes from that.
    if (address != peer.connection->remote_address()) addresses.push_back(std::move(address));
  }
  return addresses;
}

Coordinator::~Coordinator() { impl_->close(); }

void Coordinator::adopt(asio::ip::tcp::socket socket, std::string received) {
  impl_->adopt(std::move(socket), std::move(received));
}

void Coordinator::wait_until_idle(std::chrono::milliseconds limit, std::function<void()> on_idle) {
  impl_->on_idle = std::move(on_idle);
  impl_->idle_timer.expires_after(limit);
  impl_->idle_timer.async_wait([weak = std::weak_ptr(impl_)](const asio::error_code& error) {
    const auto self = weak.lock();
    if (self && !error && self->on_idle) std::exchange(self->on_idle, nullptr)();
  });
  impl_->check_idle();
}

}  // namespace ddprun::rendezvous
