// This node's membership in the job: its keys, the endpoint if it hosts it, and the connection to
// the coordinator, which may be lost and made again.
//
//   join() --> keys --> endpoint, if it is ours --> connection --> messages
//                                                     ^     |
//                             rejoin(), moved         +-----+ on_lost
//                       to another coordinator, or here:    | lost, and a round is known
//                                                     ^     v
//                                                    successor (successor.h)
//
// With another coordinator the round goes on: it hears again what this node had said in it
// (round_memory.h). A node that took over says so once in a heartbeat interval to whoever listens
// at the job's first endpoint: a launcher that was started again there would else open a second job
// of that name. One that hears of a later term than its own steps down: it starts nothing any more,
// and its node, which goes on listening there and tells who comes where the job is, joins anew.
//
// Whether a node hosts the endpoint may show late, when name servers have learnt of it: until
// somebody has answered, that is asked before each try to connect.
//
// Where the coordinator is looked for is coordinator_search.h's. Nothing here decides about the
// job: what is heard goes to the agent.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/membership/coordinator_search.h"
#include "launcher/membership/endpoint.h"
#include "launcher/membership/endpoint_host.h"
#include "launcher/membership/job_arbiter.h"
#include "launcher/membership/meeting_place.h"
#include "launcher/membership/successor.h"
#include "launcher/options/launch_options.h"
#include "rendezvous/control/control_client.h"
#include "rendezvous/control/control_message.h"
#include "rendezvous/control/job_query.h"
#include "rendezvous/secure/tls_context.h"
#include "rendezvous/unique_fd.h"
#include "rendezvous/worker_key.h"

namespace ddprun::launcher {

struct MembershipCallbacks {
  // For this node's workers to inherit; once, before anything else.
  std::function<void(rendezvous::UniqueFd key)> on_worker_key;
  std::function<void(const std::string& address, int port)> on_endpoint_opened;
  std::function<void()> on_endpoint_closed;  // Another node coordinates the job.
  std::function<void(const rendezvous::ControlMessage&)> on_message;
  // As ControlClientCallbacks have them. The connection's end after the job's is no loss.
  std::function<void(const std::string& why)> on_unreachable;
  std::function<void(const std::string& why, bool silent)> on_lost;
  // While this node coordinates the job: as CoordinatorCallbacks have it.
  std::function<void(const rendezvous::Query& query,
                     std::function<void(const std::string& text)> reply)>
      on_query = {};
};

// Lives on the agent's io_context, in its thread; callbacks come from there.
class Membership {
 public:
  // The references must outlive it.
  Membership(asio::io_context& io, const LaunchOptions& options, std::string host_name,
             MembershipCallbacks callbacks);

  // Makes this node a member, which messages then tell. Throws rendezvous::SecurityError when this
  // node has no key, before it listens anywhere or says a word to anybody, and EndpointError.
  asio::awaitable<void> join();

  // Whether the job could take this node back after it was cut off, of which nobody has told it.
  bool may_rejoin() const;
  // Of the round that was heard last.
  bool is_another_job() const { return search_.round().is_of_another_job(); }
  bool leads() const { return endpoint_ && !endpoint_->stepped_down(); }
  // As EndpointHost has it; "" of another node's store.
  std::string new_store_problem(int workers) {
    return leads() ? endpoint_->new_store_problem(workers) : "";
  }
  // A coordinator has answered, once: before, there is none to lose.
  bool has_met_job() const { return answered_; }
  // Connects anew, as a new member. May be called from a callback.
  void rejoin();

  void send(const rendezvous::ControlMessage& message);  // Ignored while not connected.
  // To a `query` of the coordinator's, which comes as a message. Another one does not hear it.
  void answer(const rendezvous::Told& piece);
  // How the other nodes are doing. The one that coordinates the job asks them itself; any other
  // asks the coordinator, as somebody who looks at the job does. `done` may come when nobody waits
  // for it any more, and not at all once this is gone.
  void ask_nodes(const rendezvous::Query& query, std::chrono::milliseconds limit,
                 std::function<void(const std::vector<rendezvous::NodeTold>& nodes)> done);
  void ask_coordinator(rendezvous::Query query, std::chrono::milliseconds limit,
                       std::function<void(const rendezvous::QueryAnswer& answer)> done);
  bool connected() const { return client_ && client_->connected(); }
  // What this node's workers are told as MASTER_ADDR: endpoint.h has why it may be another spelling
  // than the round's.
  std::string store_host(const rendezvous::RoundStart& round) const;

  // Ends the connection, and calls `on_left` when the endpoint, if it is here, has served the other
  // nodes, at the latest after `linger`. May be called from a callback; no other one comes after.
  void leave(std::chrono::milliseconds linger, std::function<void()> on_left);

 private:
  EndpointHost::OnOthers others();
  void open_standby();
  void make_successor(std::chrono::milliseconds give_up);
  void carry_out(const SearchStep& step, bool in_callback = false);
  void connect();
  void connect_after(std::chrono::milliseconds pause);
  void soon(std::function<void()> then);
  void on_message(const rendezvous::ControlMessage& message);
  void on_lost(const std::string& why, bool silent);
  void on_unreachable(const std::string& why);
  void lead(const rendezvous::Lead& elected);
  void follow(const rendezvous::Seat& coordinator);
  rendezvous::Seat own_seat() const;
  std::string own_address() const;
  void announce();
  asio::awaitable<void> tell_first_endpoint();
  void tell(const rendezvous::Seat& seat);
  rendezvous::Vote on_leads(const rendezvous::Leads& leads);
  void give_way_to(const rendezvous::Seat& leader);
  void stand_by();
  void hand_over();
  void join_again();
  void look_for_leader();
  void go_where(const rendezvous::Seat& coordinator);

  EndpointFacts own_facts() const;
  asio::awaitable<bool> plan_endpoint_here();
  asio::awaitable<bool> look_up_endpoint(EndpointFacts& facts);
  asio::awaitable<void> open_endpoint();
  bool may_host_yet() const;
  bool turns_host(const std::vector<std::string>& addresses);
  void open_late();
  void enter();
  // Where nodes meet in an etcd: `coordinator_` is found, or this node's endpoint is open.
  void make_meeting_place();
  asio::awaitable<bool> meet();
  asio::awaitable<bool> lead_first(const std::string& address);
  void meet_and_connect();
  void keep_named();
  JobArbiterCallbacks on_arbiter();
  void on_word_wanted(const rendezvous::WordWish& wish);
  void on_word(const rendezvous::Word& word);
  void close_endpoint(std::chrono::milliseconds linger, std::function<void()> then);
  std::string what_would_help() const;

  rendezvous::ControlClientOptions where_to() const;
  rendezvous::Hello hello() const;

  asio::io_context& io_;
  const LaunchOptions& options_;
  MembershipCallbacks callbacks_;
  std::string host_name_;
  EndpointPlan plan_;
  std::shared_ptr<const rendezvous::TlsContext> tls_;       // Null: the job's nodes prove nothing.
  std::shared_ptr<const rendezvous::WorkerKey> store_key_;  // With --store-auth.
  std::unique_ptr<EndpointHost> endpoint_;                  // On the node that hosts it.
  // Elastic jobs: where this node would host it, and who decides whether it does.
  std::unique_ptr<EndpointHost> standby_;
  EndpointPlan standby_plan_;
  std::unique_ptr<Successor> successor_;
  std::unique_ptr<MeetingPlace> meeting_;  // Where the endpoint is not known beforehand.
  int searches_ = 0;                       // There, and elsewhere.
  JobArbiter arbiter_;
  CoordinatorSearch search_;
  int term_ = 0;  // In which this node leads.
  asio::steady_timer retry_;
  std::unique_ptr<rendezvous::ControlClient> client_;
  bool answered_ = false;  // As has_met_job() says.
  bool left_ = false;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // Answers may come when this is gone.
};

}  // namespace ddprun::launcher
