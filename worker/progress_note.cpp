// A connection of its own to the launcher's store: the communicator's may be in the middle of a
// call.
#include "worker/progress_note.h"

#include <stdexcept>
#include <string>

#include "rendezvous/contract/progress_key.h"
#include "rendezvous/store_client.h"
#include "rendezvous/worker_key.h"
#include "worker/own_attempt.h"

namespace ddprun::worker {
namespace {

constexpr std::chrono::milliseconds tell_limit{1'000};  // Training waits for it, once.

}  // namespace

ProgressNote::ProgressNote(const WorkerEnv& env)
    : env_(env),
      // A store that rank 0 hosts itself dies with the attempt, and so does the note in it.
      wanted_(env.launched && env.use_agent_store && env.rank == 0 && env.master_port != 0) {}

ProgressNote::~ProgressNote() = default;

void ProgressNote::reached(std::int64_t position) {
  if (!wanted_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + pause;
  try {
    tell(position);
  } catch (const std::runtime_error&) {  // No store, or no key to prove to it.
    wanted_ = false;
    store_.reset();
  }
}

void ProgressNote::tell(std::int64_t position) {
  if (!store_) {
    store_ = std::make_unique<rendezvous::StoreClient>(
        env_.master_addr, env_.master_port,
        rendezvous::StoreClientOptions{.timeout = tell_limit,
                                       .attempt = attempt_name(env_),
                                       .hosted_by = "the launcher",
                                       .prove = rendezvous::own_store_prover()});
  }
  store_->set(rendezvous::progress_key, std::to_string(position), tell_limit);
}

}  // namespace ddprun::worker
