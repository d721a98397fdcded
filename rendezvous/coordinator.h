// Runs one job's verdicts over control connections: feeds lines and timers into Job
// (rendezvous/job/job.h) and carries out what it decides.
//
// Lives on the io_context of the agent that hosts the endpoint, in its one thread;
// rendezvous/server.h hands it the sockets. Callbacks come from the event loop.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/job/job.h"
#include "rendezvous/secure/tls_context.h"
#include "rendezvous/store/strangers.h"

namespace ddprun::rendezvous {

struct CoordinatorCallbacks {
  // Before the workers of an attempt may start: empty the store.
  std::function<void(const RoundName& round)> on_start_attempt;
  // These nodes have workers now, and no others: the addresses that their connections come from,
  // and those that they announced if they have proved the job's key.
  std::function<void(const std::vector<std::string>& addresses)> on_members;
  // How far the workers of this attempt say they are (rendezvous/contract/progress_key.h); 0: they
  // do not. Asked before everything that may end the attempt. May be empty.
  std::function<std::int64_t()> progress;
  // Another agent asks for a vote, or who leads (takeover/takeover.h), or says that it leads.
  // Empty: it is sent away.
  std::function<Vote(const AskVote& ask)> on_ask;
  std::function<Vote(const Leads& leads)> on_leads;
  // Who coordinates the job when this does not.
  std::function<Moved()> where;
  // The arbiter's word is wanted; on_word() takes it. Empty: the job has no arbiter.
  std::function<void(const WordWish& wish)> on_word_wanted;
  // Somebody who may looks at the job: the answer, a JSON object of at most answer_bytes_max, goes
  // to `reply`, at any later time. Empty: nobody is answered.
  std::function<void(const Query& query, std::function<void(const std::string& text)> reply)>
      on_query;
};

class Coordinator {
 public:
  // On standby: answers asks, and tells agents where the job is, until lead().
  Coordinator(asio::io_context& io, CoordinatorCallbacks callbacks, Strangers::Limits strangers,
              std::shared_ptr<const TlsContext> tls);
  // Coordinates from the beginning. `io` must outlive the coordinator. `strangers`: connections
  // that have not been welcomed. With `tls` every agent must prove the job's key before it is
  // heard, and who does not is told that alone. Null: plain lines, and whoever comes is heard.
  Coordinator(asio::io_context& io, JobLimits limits, CoordinatorCallbacks callbacks,
              Strangers::Limits strangers = {}, std::shared_ptr<const TlsContext> tls = nullptr);
  void lead(JobLimits limits, const Inherited& inherited);  // On standby alone.
  void on_word(const Word& word);

  // Quoted and sealed it must stay below ControlConnection::unsent_bytes_max.
  static constexpr std::size_t answer_bytes_max = 1536u << 10;
  // Asks the other nodes, and calls `done` with all that are here as soon as everybody has answered
  // who is waited for (job/gathering.h), after `limit` at the latest. Without a job: with nobody.
  void ask_nodes(Query query, std::chrono::milliseconds limit,
                 std::function<void(const std::vector<NodeTold>& nodes)> done);
  // Another one coordinates the job. Its nodes hear it; who comes is told where to go.
  void step_down(const std::string& why);
  bool stepped_down() const;
  void stand_by();  // Once it has stepped down, and this node's own agent has heard it.
  ~Coordinator();   // Closes every control connection.

  // The addresses of this machine to which agents of other machines have come, one for each.
  std::vector<std::string> came_to() const;

  // A connection whose first byte was '{' or that of TLS, and what was read of it. Its proof and
  // its hello must come within 10 s.
  void adopt(asio::ip::tcp::socket socket, std::string received);

  // Calls `on_idle` once, as soon as every agent that has said hello has closed its connection, at
  // the latest after `limit`: until then the last verdict may still be on its way to somebody.
  void wait_until_idle(std::chrono::milliseconds limit, std::function<void()> on_idle);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rendezvous
