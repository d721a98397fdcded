// The exchange of addresses through the store, whose errors are told here in terms of the ranks
// that are missing: "key not found" says nothing to whoever started them.
#include "worker/peers/exchange.h"

#include <algorithm>
#include <span>

#include "rendezvous/store_client.h"
#include "worker/network_interface.h"
#include "worker/own_attempt.h"
#include "worker/worker_store.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

class StoreExchange : public AddressExchange {
 public:
  StoreExchange(const WorkerEnv& env, const CommunicatorOptions& options,
                const StoreEndpoint& endpoint)
      : rank_(env.rank),
        world_size_(env.world_size),
        limit_(within_limit(options)),
        store_(endpoint.host, endpoint.port, store_client_options(env, options)),
        address_(chosen_address(options.interface)),
        prefix_("ddprun/communicator/" + env.run_id + "/" + attempt_name(env)) {
    if (address_.empty()) address_ = env.own_address;
    if (address_.empty()) address_ = store_.local_address();
    // An attempt may make several communicators, in the same order on all ranks: each has keys of
    // its own.
    const auto number = store_.add(prefix_ + "/count/" + std::to_string(rank_), 1);
    // Of all ranks the n-th communicator has number n, as all make the same ones in the same order.
    prefix_ += '/';
    prefix_ += std::to_string(number);
  }

  std::vector<std::string> all_gather(const std::string& mine,
                                      Clock::time_point deadline) override {
    const std::string round = prefix_ + "/" + std::to_string(round_++) + "/";
    store_.set(round + std::to_string(rank_), mine);
    std::vector<std::string> keys;
    for (int rank = 0; rank < world_size_; ++rank) keys.push_back(round + std::to_string(rank));
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    try {
      store_.wait(keys, std::max(left, std::chrono::milliseconds{1}));
    } catch (const rendezvous::StoreTimeout&) {
      throw rendezvous::StoreError(missing_of(keys) + " did not come " + limit_);
    }
    return store_.multi_get(keys);
  }

  std::string local_address() const override { return address_; }

 private:
  std::string missing_of(const std::vector<std::string>& keys) {
    std::string missing;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (store_.check(std::span(&keys[static_cast<std::size_t>(rank)], 1))) continue;
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(rank);
    }
    return missing;
  }

  int rank_;
  int world_size_;
  std::string limit_;
  rendezvous::StoreClient store_;
  std::string address_;
  std::string prefix_;
  int round_ = 0;
};

// Turns the store's errors into ours, with what they mean for the communicator.
class CheckedExchange : public AddressExchange {
 public:
  CheckedExchange(const WorkerEnv& env, const CommunicatorOptions& options)
      : env_(env), endpoint_(open_store(env, options)) {
    guarded([&] { inner_ = std::make_unique<StoreExchange>(env, options, endpoint_); });
  }
  std::vector<std::string> all_gather(const std::string& mine,
                                      Clock::time_point deadline) override {
    std::vector<std::string> texts;
    guarded([&] { texts = inner_->all_gather(mine, deadline); });
    return texts;
  }
  std::string local_address() const override { return inner_->local_address(); }

 private:
  template <typename Action>
  void guarded(Action action) {
    try {
      action();
    } catch (const rendezvous::StoreError& error) {
      throw CommunicatorError("rank " + std::to_string(env_.rank) + " of " +
                              std::to_string(env_.world_size) +
                              " could not meet the others through the store at " + endpoint_.host +
                              ":" + std::to_string(endpoint_.port) + ": " + error.what());
    }
  }

  WorkerEnv env_;
  StoreEndpoint endpoint_;
  std::unique_ptr<StoreExchange> inner_;
};

}  // namespace

std::unique_ptr<AddressExchange> make_store_exchange(const WorkerEnv& env,
                                                     const CommunicatorOptions& options) {
  return std::make_unique<CheckedExchange>(env, options);
}

}  // namespace ddprun::worker
