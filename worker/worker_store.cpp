// Who hosts the store where no launcher does, and who removes what is left of the meeting.
#include "worker/worker_store.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <system_error>

#include "rendezvous/file_rendezvous.h"
#include "rendezvous/host/interface_addresses.h"
#include "rendezvous/host/loopback_address.h"
#include "rendezvous/hosted_store.h"
#include "rendezvous/time_text.h"
#include "rendezvous/worker_key.h"
#include "worker/network_interface.h"
#include "worker/own_attempt.h"
#include "worker/wording.h"

namespace ddprun::worker {
namespace {

std::mutex& mutex() {
  static std::mutex one;
  return one;
}

// One handshake of a store that is there takes far less.
constexpr std::chrono::milliseconds taken_port_limit{5'000};

std::string look_up_localhost() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<std::string> addresses;
  if (::getaddrinfo("localhost", nullptr, &hints, &found) == 0) {
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      addresses.push_back(rendezvous::numeric_address(at->ai_addr));
    }
    ::freeaddrinfo(found);
  }
  return rendezvous::address_of_localhost(addresses);
}

// Where rank 0 listens; "": on every interface.
std::string bind_address(const WorkerEnv& env) {
  if (!meets_on_one_host(env)) return "";
  return env.master_addr == "localhost" ? look_up_localhost() : env.master_addr;
}

// Hosts the store, unless this process does already. It is never destroyed. "", or why not: the
// port is another's.
std::string try_to_host(const WorkerEnv& env) {
  static auto* const hosted = new std::map<std::uint16_t, rendezvous::HostedStore>;
  const std::lock_guard lock(mutex());
  if (hosted->count(env.master_port) != 0) return "";
  try {
    hosted->try_emplace(env.master_port, bind_address(env), env.master_port);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::address_in_use) return error.what();
    throw CommunicatorError(std::string("rank 0 cannot host the store: ") + error.what());
  }
  return "";
}

// A port in use is no error if somebody hosts a store there already. If not, nobody else will: to
// wait for one until the limit of all others would be in vain.
void host_store(const WorkerEnv& env, const CommunicatorOptions& options) {
  const std::string problem = try_to_host(env);
  if (problem.empty()) return;
  const rendezvous::StoreClientOptions look = {
      .timeout = std::min(options.connect_timeout, taken_port_limit),
      .hosted_by = "another store",
      .prove = rendezvous::own_store_prover(),
      .interrupt_fd = options.interrupt_fd};
  try {
    const rendezvous::StoreClient there(env.master_addr, env.master_port, look);
  } catch (const rendezvous::StoreInterrupted& error) {
    throw CommunicatorError(error.what());
  } catch (const rendezvous::StoreError& error) {
    throw CommunicatorError("rank 0 cannot host the store: " + problem +
                            ", and whoever has the port serves no store to this job: " +
                            error.what() + "; give this job another port");
  }
}

// Destroyed when the process exits: rank 0 then removes the file. A child that was forked after the
// meeting has no part in it, and not the store's thread either.
class Meetings {
 public:
  ~Meetings() {
    if (::getpid() == owner_) return;
    for (auto& [key, rendezvous] : met_) static_cast<void>(rendezvous.release());
  }

  StoreEndpoint meet(const WorkerEnv& env, const CommunicatorOptions& options) {
    const std::lock_guard lock(mutex());
    auto& met = met_[{env.rendezvous_file, env.rank}];
    if (!met) {
      owner_ = ::getpid();
      met = std::make_unique<rendezvous::FileRendezvous>(
          env.rendezvous_file, env.rank, env.world_size, options.connect_timeout,
          chosen_address(options.interface), meeting_words(env, options));
    }
    return {met->host(), met->port()};
  }

 private:
  int owner_ = ::getpid();
  std::map<std::pair<std::string, int>, std::unique_ptr<rendezvous::FileRendezvous>> met_;
};

void require_folder(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return;
  throw CommunicatorError(
      "cannot meet at file://" + path + ": there is no folder " + folder.string() +
      " on this host; make it, or name a file in a folder that all workers see");
}

}  // namespace

// A store without a secret: it listens no further than those who are asked to come need.
bool meets_on_one_host(const WorkerEnv& env) {
  return !env.use_agent_store && env.rendezvous_file.empty() &&
         (env.master_addr == "localhost" || rendezvous::is_loopback_address(env.master_addr));
}

StoreEndpoint open_store(const WorkerEnv& env, const CommunicatorOptions& options) {
  if (env.rendezvous_file.empty() || env.master_port != 0) {
    // The job's rank 0, whatever place it has in a group: the others look for the store at its
    // host.
    const bool is_rank_0 = env.job_rank.value_or(env.rank) == 0;
    const bool hosts = !env.use_agent_store && is_rank_0 && env.world_size > 1;
    if (hosts && env.rendezvous_file.empty() && env.master_port != 0) host_store(env, options);
    return {env.master_addr, env.master_port};
  }
  require_folder(env.rendezvous_file);
  static Meetings meetings;
  try {
    return meetings.meet(env, options);
  } catch (const rendezvous::FileRendezvousTimeout& error) {
    throw CommunicatorError(std::string(error.what()) + " (" + options.connect_timeout_name +
                            " sets how long is waited)");
  } catch (const rendezvous::FileRendezvousError& error) {
    throw CommunicatorError(error.what());
  }
}

rendezvous::StoreClientOptions store_client_options(const WorkerEnv& env,
                                                    const CommunicatorOptions& options) {
  return {.timeout = options.connect_timeout,
          // A launcher's store serves one attempt at a time. One that rank 0 hosts knows of none.
          .attempt = env.use_agent_store ? attempt_name(env) : std::string(),
          .hosted_by = env.use_agent_store ? "the launcher" : "rank 0",
          .prove = rendezvous::own_store_prover(),
          .interrupt_fd = options.interrupt_fd,
          .connecting = meeting_words(env, options)};
}

rendezvous::WaitWords meeting_words(const WorkerEnv& env, const CommunicatorOptions& options) {
  std::string rank = rank_of_world(env.rank, env.world_size) + " has waited ";
  std::string limit = "; it gives up after " + rendezvous::time_text(options.connect_timeout) +
                      " (" + options.connect_timeout_name + " sets the limit)";
  auto tell = options.on_slow_wait;
  if (!tell) tell = [](const std::string& text) { std::cerr << "ddprun: " + text + "\n"; };
  return {.tell =
              [=](std::chrono::milliseconds waited, const std::string& problem) {
                tell(rank + "for " + rendezvous::time_text(waited) +
                     " to meet the others: " + problem + limit);
              },
          .first = options.slow_meeting};
}

std::vector<int> missing_ranks(rendezvous::StoreClient& store,
                               const std::vector<std::string>& keys) {
  std::vector<int> missing;
  for (std::size_t rank = 0; rank < keys.size(); ++rank) {
    if (!store.check(std::span(&keys[rank], 1))) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

std::vector<int> wait_for_ranks(rendezvous::StoreClient& store,
                                const std::vector<std::string>& keys, rendezvous::LongWait wait,
                                std::chrono::steady_clock::time_point deadline,
                                const std::function<std::string(const std::vector<int>&)>& who) {
  using Clock = std::chrono::steady_clock;
  for (;;) {
    const auto until = std::min(deadline, wait.next());
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    try {
      store.wait(keys, std::max(left, std::chrono::milliseconds{1}));
      return {};
    } catch (const rendezvous::StoreTimeout&) {
      const auto now = Clock::now();
      const bool is_over = now >= deadline;
      if (!is_over && !wait.is_due(now)) continue;
      const std::vector<int> missing = missing_ranks(store, keys);
      if (is_over || missing.empty()) return missing;
      wait.tell(now, who(missing));
    }
  }
}

}  // namespace ddprun::worker
