// Who follows a job over a takeover asks where it has gone: any node that listens for the job
// knows.
#include "launcher/watch/remote_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/address.hpp>
#include <exception>
#include <optional>
#include <utility>

#include "launcher/machine/this_machine.h"
#include "rendezvous/control/resolve.h"
#include "rendezvous/host_and_port.h"
#include "rendezvous/secure/job_secret.h"
#include "rendezvous/secure/psk.h"
#include "rendezvous/secure/security_error.h"

namespace ddprun::launcher {
namespace {

constexpr int moves_max = 3;
constexpr std::size_t others_at_once = 3;  // Each may take its limit.

// A job whose nodes meet at such an address needs no secret, unless it was asked for.
bool is_loopback_name(const std::string& host) {
  asio::error_code error;
  const auto address = asio::ip::make_address(host, error);
  return host == "localhost" || (!error && address.is_loopback());
}

// In a loop of its own. A name may have addresses of which only one is listened at (localhost:
// ::1).
rendezvous::QueryAnswer put(const std::string& host, std::uint16_t port,
                            const rendezvous::Query& query,
                            const std::shared_ptr<const rendezvous::TlsContext>& tls,
                            std::chrono::milliseconds limit) {
  asio::io_context io;
  const auto run_until = [&](const auto& is_there) {
    const auto until = std::chrono::steady_clock::now() + 2 * limit;
    io.restart();
    while (!is_there() && io.run_one_until(until) > 0) {
    }
  };
  auto resolved = std::make_shared<std::optional<rendezvous::Resolved>>();
  asio::co_spawn(
      io,
      [resolved, host]() -> asio::awaitable<void> {
        *resolved = co_await rendezvous::resolve(host);
      },
      asio::detached);
  run_until([&] { return resolved->has_value(); });
  rendezvous::QueryAnswer answer{.why = "its name is not resolved in time"};
  if (!*resolved) return answer;
  answer.why = "its name cannot be resolved: " + (*resolved)->error;
  bool reached = false;
  for (const std::string& address : (*resolved)->addresses) {
    auto given = std::make_shared<std::optional<rendezvous::QueryAnswer>>();
    rendezvous::query_coordinator(io, address, port, query, tls, limit,
                                  [given](const rendezvous::QueryAnswer& got) { *given = got; });
    run_until([&] { return given->has_value(); });
    if (!*given) continue;
    // Who listens at one of them and is late tells more than those where nobody does.
    if (!(*given)->nobody_listens || !reached) answer = **given;
    reached = reached || !(*given)->nobody_listens;
    if (answer.why.empty()) return answer;
  }
  return answer;
}

}  // namespace

RemoteJob::RemoteJob(const WatchCommand& command)
    : command_(command), place_{command.endpoint_host, command.endpoint_port} {
  const bool asks_none =
      command_.auth == "none" || (command_.auth.empty() && is_loopback_name(place_.host));
  if (!asks_none) read_key();
}

void RemoteJob::read_key() {
  std::string file = command_.secret_file;
  if (file.empty()) file = environment_variable("DDPRUN_SECRET_FILE").value_or("");
  if (file.empty()) file = rendezvous::usual_secret_file(environment_variable);
  try {
    if (file.empty()) throw rendezvous::SecurityError("there is no home folder (HOME is not set)");
    const rendezvous::SecretBytes secret = rendezvous::read_secret(file);
    tls_ = std::make_shared<rendezvous::TlsContext>(rendezvous::control_key(secret, run_id()));
  } catch (const std::exception& error) {
    throw RemoteJobError(rendezvous::exit_status::usage,
                         fmt::format("ddprun: to ask {} the job's secret is needed: {}; name its "
                                     "file with --secret-file, or give --auth none",
                                     name(), error.what()));
  }
}

std::string RemoteJob::run_id() const { return command_.job.empty() ? "none" : command_.job; }

std::string RemoteJob::name() const { return rendezvous::host_and_port(place_.host, place_.port); }

// Asks at `place`, and where it is sent from there, which `place` becomes.
rendezvous::QueryAnswer RemoteJob::follow(Place& place, const rendezvous::Query& query,
                                          std::chrono::milliseconds limit) const {
  for (int moves = 0;; ++moves) {
    rendezvous::QueryAnswer answer = put(place.host, place.port, query, tls_, limit);
    if (!answer.moved || answer.moved->address.empty() || moves == moves_max) return answer;
    place = {answer.moved->address, static_cast<std::uint16_t>(answer.moved->port)};
  }
}

// Some of them, and at the next question the next ones. `job_lives`: one of them knows of it.
std::optional<std::string> RemoteJob::ask_others(const rendezvous::Query& query,
                                                 std::chrono::milliseconds limit, bool& job_lives) {
  for (std::size_t i = 0; i < std::min(others_at_once, others_.size()); ++i) {
    Place place = others_[next_other_++ % others_.size()];
    const rendezvous::QueryAnswer answer = follow(place, query, limit);
    job_lives = job_lives || answer.moved || answer.refused;
    if (!answer.text) continue;
    place_ = place;
    return answer.text;
  }
  return std::nullopt;
}

void RemoteJob::give_up(const rendezvous::QueryAnswer& answer, bool job_lives) const {
  if (answer.moved) {
    throw RemoteJobError(1, fmt::format("ddprun: {} does not coordinate the job, and does not know "
                                        "who does just now: ask again",
                                        name()));
  }
  if (answer.refused) {
    throw RemoteJobError(answer.refused->exit_status,
                         fmt::format("ddprun: {} does not tell: {} (asked for the job \"{}\")",
                                     name(), answer.refused->reason, run_id()));
  }
  throw RemoteJobError(
      1,
      fmt::format("ddprun: no job tells at {}: {}; the endpoint is what the nodes were given "
                  "with --rdzv-endpoint, or --master-addr and --master-port; if its node was lost, "
                  "ask on another node's host, without --endpoint",
                  name(), answer.why),
      answer.nobody_listens && !job_lives);
}

std::string RemoteJob::ask(rendezvous::Query query, std::chrono::milliseconds limit) {
  query.run_id = run_id();
  query.number = 1;
  rendezvous::QueryAnswer answer = follow(place_, query, limit);
  // A job on loopback that was started with --auth secret.
  const bool may_prove = command_.auth.empty() && !tls_;
  if (answer.refused && may_prove && answer.refused->reason.find("secret") != std::string::npos) {
    read_key();
    answer = follow(place_, query, limit);
  }
  if (answer.text) return *answer.text;
  bool job_lives = false;
  if (!answer.refused) {
    if (auto text = ask_others(query, limit, job_lives)) return *text;
  }
  give_up(answer, job_lives);
}

}  // namespace ddprun::launcher
