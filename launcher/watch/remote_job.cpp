// Who follows a job over a takeover asks where it has gone: any node that listens for the job
// knows.
#include "launcher/watch/remote_job.h"

#include <fmt/format.h>

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/address.hpp>
#include <exception>
#include <optional>
#include <utility>

#include "launcher/machine/this_machine.h"
#include "rendezvous/control/job_query.h"
#include "rendezvous/control/resolve.h"
#include "rendezvous/host_and_port.h"
#include "rendezvous/secure/job_secret.h"
#include "rendezvous/secure/psk.h"
#include "rendezvous/secure/security_error.h"

namespace ddprun::launcher {
namespace {

constexpr int moves_max = 3;

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
    : command_(command), host_(command.endpoint_host), port_(command.endpoint_port) {
  const bool asks_none =
      command_.auth == "none" || (command_.auth.empty() && is_loopback_name(host_));
  if (!asks_none) read_key();
}

void RemoteJob::read_key() {
  std::string file = command_.secret_file;
  if (file.empty()) file = environment_variable("DDPRUN_SECRET_FILE").value_or("");
  if (file.empty()) file = rendezvous::usual_secret_file(environment_variable);
  try {
    if (file.empty()) throw rendezvous::SecurityError("there is no home folder (HOME is not set)");
    const rendezvous::SecretBytes secret = rendezvous::read_secret(file);
    tls_ = std::make_shared<rendezvous::TlsContext>(
        rendezvous::control_key(secret, command_.job.empty() ? "none" : command_.job));
  } catch (const std::exception& error) {
    throw RemoteJobError(rendezvous::exit_status::usage,
                         fmt::format("ddprun: to ask {} the job's secret is needed: {}; name its "
                                     "file with --secret-file, or give --auth none",
                                     name(), error.what()));
  }
}

std::string RemoteJob::name() const { return rendezvous::host_and_port(host_, port_); }

std::string RemoteJob::ask(rendezvous::Query query, std::chrono::milliseconds limit) {
  query.run_id = command_.job.empty() ? "none" : command_.job;
  query.number = 1;
  for (int moves = 0;; ++moves) {
    const rendezvous::QueryAnswer answer = put(host_, port_, query, tls_, limit);
    if (answer.text) return *answer.text;
    if (answer.moved && !answer.moved->address.empty() && moves < moves_max) {
      host_ = answer.moved->address;
      port_ = static_cast<std::uint16_t>(answer.moved->port);
      continue;
    }
    if (answer.moved) {
      throw RemoteJobError(1, fmt::format("ddprun: {} does not coordinate the job, and does not "
                                          "know who does just now: ask again",
                                          name()));
    }
    // A job on loopback that was started with --auth secret.
    const bool may_prove = command_.auth.empty() && !tls_;
    if (answer.refused && may_prove && answer.refused->reason.find("secret") != std::string::npos) {
      read_key();
      continue;
    }
    if (answer.refused) {
      throw RemoteJobError(answer.refused->exit_status,
                           fmt::format("ddprun: {} does not tell: {} (asked for the job \"{}\")",
                                       name(), answer.refused->reason, query.run_id));
    }
    throw RemoteJobError(
        1,
        fmt::format("ddprun: no job tells at {}: {}; the endpoint is what the nodes were given "
                    "with --rdzv-endpoint, or --master-addr and --master-port",
                    name(), answer.why),
        answer.nobody_listens);
  }
}

}  // namespace ddprun::launcher
