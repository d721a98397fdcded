// What the node at the endpoint runs beside its agent: the listening port with the store, and the
// coordinator. Both live on the agent's io_context.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "launcher/machine/descriptor_budget.h"
#include "launcher/membership/endpoint.h"
#include "launcher/options/launch_options.h"
#include "rendezvous/coordinator.h"
#include "rendezvous/server.h"
#include "rendezvous/store/access_list.h"
#include "rendezvous/worker_key.h"

namespace ddprun::launcher {

// The endpoint cannot be opened; the message names address, port and, where known, who holds it.
class EndpointError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class EndpointHost {
 public:
  // What other agents ask and tell that look for the job's coordinator. Empty: nobody may.
  struct OnOthers {
    std::function<rendezvous::Vote(const rendezvous::AskVote& ask)> on_ask;
    std::function<rendezvous::Vote(const rendezvous::Leads& leads)> on_leads;
    std::function<rendezvous::Moved()> where;
    // The job needs the arbiter's word, which on_word() takes. Never without one.
    std::function<void(const rendezvous::WordWish& wish)> on_word_wanted;
    // As CoordinatorCallbacks have it.
    std::function<void(const rendezvous::Query& query,
                       std::function<void(const std::string& text)> reply)>
        on_query;
  };

  // Listens as `plan` says. Returns null when the plan is HostIfFree and the port is in use.
  // Throws EndpointError. `node_id`: of the agent on this node. `job`: its name at the arbiter; ""
  // = it has none. `tls`: what agents must prove; null: nothing.
  static std::unique_ptr<EndpointHost> open(asio::io_context& io, const LaunchOptions& options,
                                            const EndpointPlan& plan, const std::string& node_id,
                                            const std::string& job,
                                            std::shared_ptr<const rendezvous::TlsContext> tls,
                                            std::shared_ptr<const rendezvous::WorkerKey> store_key,
                                            OnOthers others);

  // Listens as well, but has no job: it answers `others`, and its store is empty, until lead().
  static std::unique_ptr<EndpointHost> open_standby(
      asio::io_context& io, const LaunchOptions& options, const EndpointPlan& plan,
      std::shared_ptr<const rendezvous::TlsContext> tls,
      std::shared_ptr<const rendezvous::WorkerKey> store_key, OnOthers others);
  // Coordinates the job from here on. `plan.master_addr`: where the other nodes reach this one.
  void lead(const LaunchOptions& options, const EndpointPlan& plan, const std::string& node_id,
            const std::string& job, const rendezvous::Inherited& inherited);
  void on_word(const rendezvous::Word& word) { coordinator_->on_word(word); }
  // As Coordinator has them. The port stays open, for those who look for the job here.
  void step_down(const std::string& why) { coordinator_->step_down(why); }
  bool stepped_down() const { return coordinator_->stepped_down(); }
  void stand_by() { coordinator_->stand_by(); }

  // As Coordinator has it.
  void ask_nodes(const rendezvous::Query& query, std::chrono::milliseconds limit,
                 std::function<void(const std::vector<rendezvous::NodeTold>& nodes)> done) {
    coordinator_->ask_nodes(query, limit, std::move(done));
  }

  // As Coordinator has it.
  std::vector<std::string> came_to() const { return coordinator_->came_to(); }

  std::uint16_t port() const { return server_->port(); }

  // Why the workers of an attempt, of all nodes, have no place in the store; "" when they have, and
  // when that was said of as many before.
  std::string new_store_problem(int workers);

  // Calls `on_idle` when all other agents have heard the verdict and gone, at the latest after
  // `limit`.
  void wait_until_idle(std::chrono::milliseconds limit, std::function<void()> on_idle) {
    coordinator_->wait_until_idle(limit, std::move(on_idle));
  }

 private:
  void listen(asio::io_context& io, const LaunchOptions& options, const EndpointPlan& plan,
              std::shared_ptr<const rendezvous::WorkerKey> store_key);
  void admit_own(const LaunchOptions& options, const EndpointPlan& plan);
  rendezvous::CoordinatorCallbacks callbacks(OnOthers others);

  DescriptorBudget budget_;
  int workers_max_ = 0;  // Of all attempts so far.
  rendezvous::AccessList store_access_;
  rendezvous::Strangers::Limits strangers_;
  std::unique_ptr<rendezvous::Server> server_;
  std::unique_ptr<rendezvous::Coordinator> coordinator_;
};

}  // namespace ddprun::launcher
