// The exchange of addresses through the store, whose errors are told here in terms of the ranks
// that are missing: "key not found" says nothing to whoever started them.
#include "worker/peers/exchange.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>
#include <string_view>

#include "rendezvous/host_and_port.h"
#include "rendezvous/long_wait.h"
#include "rendezvous/store_client.h"
#include "worker/meeting.h"
#include "worker/network_interface.h"
#include "worker/own_attempt.h"
#include "worker/progress_page.h"
#include "worker/wording.h"
#include "worker/worker_store.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Why meetings of this process failed, by store, keys and rank. Each rank counts its communicators
// alone, so one that has given up is ahead of the others for as long as its attempt lasts.
struct FailedMeetings {
  std::mutex mutex;
  std::map<std::string, std::string> reasons;
};

// Never destroyed, and made when it is asked for: a communicator may be a global object.
FailedMeetings& failed_meetings() {
  static auto* const all = new FailedMeetings;
  return *all;
}

void throw_if_failed(const std::string& meeting) {
  FailedMeetings& failed = failed_meetings();
  const std::lock_guard lock(failed.mutex);
  const auto found = failed.reasons.find(meeting);
  if (found == failed.reasons.end()) return;
  throw CommunicatorError("an earlier meeting of this rank failed (" + found->second +
                          "), and in another one of the same attempt the others would not be "
                          "found: end the process, so that all of them start anew");
}

class StoreExchange : public AddressExchange {
 public:
  StoreExchange(const WorkerEnv& env, const CommunicatorOptions& options,
                const StoreEndpoint& endpoint)
      : rank_(env.rank),
        world_size_(env.world_size),
        limit_(within_limit(options)),
        words_(meeting_words(env, options)),
        store_(endpoint.host, endpoint.port, store_client_options(env, options)),
        address_(chosen_address(options.interface)),
        prefix_("ddprun/communicator/" + env.run_id + "/" + attempt_name(env)) {
    if (address_.empty()) address_ = env.own_address;
    if (address_.empty()) address_ = store_.local_address();
    if (!options.group.empty()) {
      prefix_ += "/group/" + options.group;
      take_place(env, options.group);
    }
    // Not by its address alone: another store may listen there later, and counts anew.
    meeting_ = rendezvous::host_and_port(endpoint.host, endpoint.port) + " " +
               store_.store_identity() + "/" + prefix_ + "/" + std::to_string(rank_);
    throw_if_failed(meeting_);
    const auto number = store_.add(prefix_ + "/count/" + std::to_string(rank_), 1);
    // Of all ranks the n-th communicator has number n, as all make the same ones in the same order.
    prefix_ += '/';
    prefix_ += std::to_string(number);
  }

  std::vector<std::string> all_gather(const std::string& mine,
                                      Clock::time_point deadline) override {
    try {
      return gather(mine, deadline);
    } catch (const rendezvous::StoreError& error) {
      FailedMeetings& failed = failed_meetings();
      const std::lock_guard lock(failed.mutex);
      failed.reasons.emplace(meeting_, error.what());
      throw;
    }
  }

  std::string local_address() const override { return address_; }
  rendezvous::WaitWords wait_words() const override { return words_; }

 private:
  std::vector<std::string> gather(const std::string& mine, Clock::time_point deadline) {
    const std::string round = prefix_ + "/" + std::to_string(round_++) + "/";
    store_.set(round + std::to_string(rank_), mine);
    std::vector<std::string> keys;
    for (int rank = 0; rank < world_size_; ++rank) keys.push_back(round + std::to_string(rank));
    const auto who = [](const std::vector<int>& missing) {
      return rank_list(missing) + " did not come yet";
    };
    const std::vector<int> missing =
        wait_for_ranks(store_, keys, {words_, Clock::now()}, deadline, who);
    if (!missing.empty()) {
      throw rendezvous::StoreError(rank_list(missing) + " did not come " + limit_);
    }
    return store_.multi_get(keys);
  }

  // Of two groups with one name this ends all but those who came first.
  void take_place(const WorkerEnv& env, const std::string& group) {
    const std::string own = std::to_string(env.job_rank.value_or(env.rank));
    const std::string place = std::to_string(rank_);
    const std::string holder = store_.compare_set(prefix_ + "/place/" + place, "", own);
    if (holder == own) return;
    throw CommunicatorError("rank " + own + " of the job cannot be rank " + place +
                            " of the group \"" + group + "\": rank " + holder +
                            " of the job is; give each group of ranks a name of its own "
                            "(CommunicatorOptions::group)");
  }

  int rank_;
  int world_size_;
  std::string limit_;
  rendezvous::WaitWords words_;
  std::string meeting_;  // In failed_meetings().
  rendezvous::StoreClient store_;
  std::string address_;
  std::string prefix_;
  int round_ = 0;
};

// Turns the store's errors into ours, with what they mean for the communicator.
class CheckedExchange : public AddressExchange {
 public:
  CheckedExchange(const WorkerEnv& env, const CommunicatorOptions& options)
      : who_(rank_of_world(env.rank, env.world_size) +
             (options.group.empty() ? "" : " in the group \"" + options.group + "\"")),
        endpoint_(open_store(env, options)) {
    guarded([&] { inner_ = std::make_unique<StoreExchange>(env, options, endpoint_); });
  }
  std::vector<std::string> all_gather(const std::string& mine,
                                      Clock::time_point deadline) override {
    std::vector<std::string> texts;
    guarded([&] { texts = inner_->all_gather(mine, deadline); });
    return texts;
  }
  std::string local_address() const override { return inner_->local_address(); }
  rendezvous::WaitWords wait_words() const override { return inner_->wait_words(); }

 private:
  template <typename Action>
  void guarded(Action action) {
    const WaitForOthers told_of;  // All that is asked of the store here is for them.
    try {
      action();
    } catch (const rendezvous::StoreError& error) {
      throw CommunicatorError(who_ + " could not meet the others through the store at " +
                              rendezvous::host_and_port(endpoint_.host, endpoint_.port) + ": " +
                              error.what());
    }
  }

  std::string who_;
  StoreEndpoint endpoint_;
  std::unique_ptr<StoreExchange> inner_;
};

bool is_group_name(const std::string& name) {
  const auto is_part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-_.,").find(c) != std::string_view::npos;
  };
  return name.size() <= 64 && std::all_of(name.begin(), name.end(), is_part);
}

}  // namespace

void check_group(const WorkerEnv& env, const CommunicatorOptions& options) {
  if (env.world_size == 1) return;  // It meets nobody.
  const int job_rank = env.job_rank.value_or(env.rank);
  const int job_world_size = env.job_world_size.value_or(env.world_size);
  if (options.group.empty()) {
    if (job_world_size == env.world_size) return;  // In whichever order.
    throw CommunicatorError(rank_of_world(env.rank, env.world_size) + " is " +
                            rank_of_world(job_rank, job_world_size) +
                            " in its job: a communicator of some of a job's ranks needs a name "
                            "that no other group of them has (CommunicatorOptions::group); where "
                            "its run_id, or a store of its own, keeps it apart, reset() job_rank "
                            "and job_world_size instead");
  }
  if (!is_group_name(options.group)) {
    throw CommunicatorError("\"" + options.group.substr(0, 100) +
                            "\" cannot be the name of a group of ranks: give at most 64 letters, "
                            "digits and \"-_.,\"");
  }
  if (!needs_meeting(env)) return;
  throw CommunicatorError(rank_of_world(env.rank, env.world_size) + " of the group \"" +
                          options.group +
                          "\" does not know its host's other workers: change rank and world size "
                          "of what meet_workers() returns for the whole job");
}

std::unique_ptr<AddressExchange> make_store_exchange(const WorkerEnv& env,
                                                     const CommunicatorOptions& options) {
  return std::make_unique<CheckedExchange>(env, options);
}

}  // namespace ddprun::worker
