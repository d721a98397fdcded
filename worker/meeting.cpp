// Workers that nobody placed tell each other where they run: through keys of a store, one for each
// rank.
#include "worker/meeting.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "rendezvous/host/host_name.h"
#include "rendezvous/host/loopback_address.h"
#include "rendezvous/host_and_port.h"
#include "rendezvous/long_wait.h"
#include "rendezvous/random_id.h"
#include "rendezvous/store_client.h"
#include "worker/host_places.h"
#include "worker/network_interface.h"
#include "worker/own_attempt.h"
#include "worker/progress_page.h"
#include "worker/wording.h"
#include "worker/worker_store.h"

namespace ddprun::worker {
namespace {

// Containers of one machine have names, networks and devices of their own.
std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", error);
  return boot + " " + rendezvous::own_host_name() + " " + network.string();
}

// Another one for each process, also after a fork.
std::string process_identity() {
  static const std::string random = rendezvous::random_id(8);
  return random + "." + std::to_string(::getpid());
}

std::string number_text(int number) { return std::to_string(number); }

class Meeting {
  using Clock = std::chrono::steady_clock;

 public:
  Meeting(const WorkerEnv& env, const CommunicatorOptions& options, const StoreEndpoint& endpoint)
      : env_(env),
        options_(options),
        since_(Clock::now()),
        deadline_(since_ + options.connect_timeout),
        store_(endpoint.host, endpoint.port, store_client_options(env, options)),
        prefix_("ddprun/meeting/" + env.run_id + "/" + attempt_name(env) + "/") {}

  std::vector<WorkerNote> run() {
    check_world_size();
    take_rank();
    return notes_of_all();
  }

 private:
  void check_world_size() {
    const std::string mine = number_text(env_.world_size);
    const std::string agreed = store_.compare_set(prefix_ + "world_size", "", mine);
    if (agreed == mine) return;
    throw CommunicatorError("rank " + number_text(env_.rank) + " was told a world size of " + mine +
                            ", but other workers of this job were told " + agreed +
                            ": give all the same");
  }

  void take_rank() {
    WorkerNote note;
    note.host = host_identity();
    note.name = "pid " + number_text(::getpid()) + " on " + rendezvous::own_host_name();
    note.address = store_.local_address();
    note.world_size = env_.world_size;
    note.local_rank = env_.local_rank_known ? env_.local_rank : -1;
    note.identity = process_identity();
    const std::string holder = store_.compare_set(key(env_.rank), "", to_text(note));
    throw_if_given_up(holder);
    const WorkerNote taken = parse_worker_note(holder);
    if (taken.identity == note.identity) return;
    throw CommunicatorError("two workers are rank " + number_text(env_.rank) + " of " +
                            number_text(env_.world_size) + ": " + note.name + ", and before it " +
                            taken.name + "; give each worker a rank of its own, and each job a " +
                            "meeting place of its own");
  }

  std::vector<WorkerNote> notes_of_all() {
    std::vector<std::string> keys;
    for (int rank = 0; rank < env_.world_size; ++rank) keys.push_back(key(rank));
    wait_for(keys);
    std::vector<WorkerNote> notes;
    for (const std::string& text : store_.multi_get(keys)) {
      throw_if_given_up(text);
      notes.push_back(parse_worker_note(text));
    }
    return notes;
  }

  void wait_for(const std::vector<std::string>& keys) {
    const auto who = [this](const std::vector<int>& missing) {
      return names_of_missing(missing) + " did not come yet" + who_can_come();
    };
    const std::vector<int> missing =
        wait_for_ranks(store_, keys, {meeting_words(env_, options_), since_}, deadline_, who);
    if (!missing.empty()) give_up(missing);  // Else they came, or somebody else gave up.
  }

  std::string who_can_come() const {
    if (!meets_on_one_host(env_)) return "";
    return "; from other hosts nobody can, since rank 0's address is " + env_.master_addr;
  }

  std::string names_of_missing(const std::vector<int>& missing) const {
    return rank_list(missing) + " of " + number_text(env_.world_size);
  }

  // The first one whose time is up tells all others why, in the places of those that are missing:
  // these places are what the others wait for. There is one verdict: whoever gives up a moment
  // later may find some of these places taken by it, and would name only the rest.
  void give_up(const std::vector<int>& missing) {
    std::string verdict = names_of_missing(missing) + " did not come " + within_limit(options_) +
                          who_can_come() +
                          "; start every rank with the same init method and world size";
    try {
      verdict = store_.compare_set(prefix_ + "verdict", "", verdict);
      for (const int rank : missing) store_.compare_set(key(rank), "", given_up + verdict);
    } catch (const rendezvous::StoreError&) {  // Somebody gave up before, and rank 0 is gone.
    }
    end_with(verdict);
  }

  void throw_if_given_up(const std::string& text) {
    if (is_verdict(text)) end_with(text.substr(std::string(given_up).size()));
  }

  static bool is_verdict(const std::string& text) { return text.rfind(given_up, 0) == 0; }

  // Whoever knows the verdict says so and goes. Only rank 0 stays until the others know it as well,
  // for the store ends with rank 0's process: they would otherwise wait their whole limit once more
  // for a store that is gone, and blame its host. Nobody waits for those others: who gives up first
  // need not be rank 0.
  [[noreturn]] void end_with(const std::string& verdict) {
    try {
      if (env_.rank != 0) {
        store_.set(told_key(env_.rank), "", telling_limit);
      } else if (const auto told = told_keys_of_present(); !told.empty()) {
        store_.wait(told, telling_limit);
      }
    } catch (const rendezvous::StoreError&) {  // The verdict stands, whoever heard it.
    }
    throw CommunicatorError(verdict);
  }

  std::vector<std::string> told_keys_of_present() {
    std::vector<std::string> keys, told;
    for (int rank = 0; rank < env_.world_size; ++rank) keys.push_back(key(rank));
    const std::vector<std::string> texts = store_.multi_get(keys, telling_limit);
    for (int rank = 1; rank < env_.world_size; ++rank) {
      if (!is_verdict(texts[static_cast<std::size_t>(rank)])) told.push_back(told_key(rank));
    }
    return told;
  }

  static constexpr const char* given_up = "given up: ";
  static constexpr std::chrono::seconds telling_limit{5};  // One of them may have died meanwhile.

  std::string key(int rank) const { return prefix_ + "rank/" + number_text(rank); }
  std::string told_key(int rank) const { return prefix_ + "told/" + number_text(rank); }

  const WorkerEnv& env_;
  const CommunicatorOptions& options_;
  Clock::time_point since_;
  Clock::time_point deadline_;
  rendezvous::StoreClient store_;
  std::string prefix_;
};

// Rank 0 reaches its own store through an address that leads nowhere from other hosts.
std::string address_for_other_hosts(int rank, const std::vector<WorkerNote>& notes) {
  const WorkerNote& own = notes[static_cast<std::size_t>(rank)];
  if (!rendezvous::is_loopback_address(own.address)) return "";
  for (const WorkerNote& other : notes) {
    if (other.host != own.host && !rendezvous::is_loopback_address(other.address)) {
      return address_towards(other.address);
    }
  }
  return "";
}

std::string place_text(const WorkerEnv& env, const StoreEndpoint& endpoint) {
  return env.rendezvous_file.empty()
             ? "the store at " + rendezvous::host_and_port(endpoint.host, endpoint.port)
             : "the store of file://" + env.rendezvous_file;
}

}  // namespace

bool needs_meeting(const WorkerEnv& env) {
  if (env.world_size == 1) return false;
  return !env.local_world_size_known || (!env.rendezvous_file.empty() && env.master_port == 0);
}

WorkerEnv meet_workers(const WorkerEnv& env, const CommunicatorOptions& wished) {
  const CommunicatorOptions options = bounded(wished);
  if (!needs_meeting(env)) return env;
  const WaitForOthers told_of;
  const StoreEndpoint endpoint = open_store(env, options);
  WorkerEnv met = env;
  met.master_addr = endpoint.host;
  met.master_port = endpoint.port;
  try {
    const std::vector<WorkerNote> notes = Meeting(env, options, endpoint).run();
    const HostPlace place = place_of(env.rank, notes);
    met.local_rank = place.local_rank;
    met.local_world_size = place.local_world_size;
    met.group_rank = place.group_rank;
    met.group_world_size = place.group_world_size;
    met.own_address = address_for_other_hosts(env.rank, notes);
  } catch (const rendezvous::StoreError& error) {
    throw CommunicatorError(rank_of_world(env.rank, env.world_size) +
                            " could not meet the others through " + place_text(env, endpoint) +
                            ": " + error.what() + "; " + options.connect_timeout_name +
                            " sets how long is waited");
  }
  met.local_rank_known = true;
  met.local_world_size_known = true;
  return met;
}

}  // namespace ddprun::worker
