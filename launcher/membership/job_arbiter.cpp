// A job has one name at its arbiter, which whoever founds it draws: what an earlier job of the same
// id has left there says nothing about this one.
#include "launcher/membership/job_arbiter.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "launcher/membership/endpoint.h"
#include "launcher/options/endpoint_options.h"
#include "rendezvous/arbiter/etcd_arbiter.h"
#include "rendezvous/arbiter/file_arbiter.h"
#include "rendezvous/random_id.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<rendezvous::Arbiter> make_arbiter(const LaunchOptions& options,
                                                  milliseconds answer) {
  if (!options.etcd.any()) {
    return std::make_shared<rendezvous::FileArbiter>(options.tie_breaker, options.run_id);
  }
  // A task is two requests, which end before it would count as one that hangs.
  return std::make_shared<rendezvous::EtcdArbiter>(options.etcd, options.run_id, etcd_name(options),
                                                   answer * 2 / 5);
}

}  // namespace

std::string etcd_name(const LaunchOptions& options) {
  return (meets_in_etcd(options) ? "etcd at " : "--tie-breaker ") + options.etcd.text();
}

JobArbiter::JobArbiter(asio::io_context& io, const LaunchOptions& options,
                       JobArbiterCallbacks callbacks)
    : io_(io), options_(options), callbacks_(std::move(callbacks)) {}

void JobArbiter::open() {
  WordSeekerLimits limits;
  limits.claims = {.look_again = options_.heartbeat_interval, .lapse = claim_lapse(options_)};
  limits.answer = options_.heartbeat_timeout;
  // A server far away may be slower than the job's own nodes, and nobody is lost meanwhile.
  if (options_.etcd.any()) limits.answer = std::max(limits.answer, milliseconds(5'000));
  words_ = std::make_unique<WordSeeker>(io_, make_arbiter(options_, limits.answer), limits,
                                        callbacks_.on_word);
  job_.clear();
}

asio::awaitable<std::string> JobArbiter::found() {
  if (!words_) co_return "";
  job_ = rendezvous::random_id();
  co_return co_await answer_to(
      io_, [this](CallsInTurn::Done done) { words_->found(job_, std::move(done)); });
}

asio::awaitable<void> JobArbiter::leave_to_another() {
  if (!words_) co_return;
  co_await answer_to(io_, [this](CallsInTurn::Done done) { words_->forget(std::move(done)); });
  open();
}

void JobArbiter::heard_of(const std::string& job) {
  if (asked_ && job == job_) return;
  if (words_ == nullptr || job.empty()) {
    if (std::exchange(asked_, true) || job.empty() == (words_ == nullptr)) return;
    spdlog::warn(job.empty() ? "the coordinator has no --tie-breaker: this node's is not used"
                             : "the job has a --tie-breaker, and this node none: it cannot take "
                               "over without a majority");
    return;
  }
  asked_ = true;
  job_ = job;
  sees_job_ = false;
  words_->join(job, [this](const std::string& why) {
    sees_job_ = true;
    if (!why.empty()) return callbacks_.on_another(why);
    for (const rendezvous::ControlMessage& message : std::exchange(unheard_, {})) {
      callbacks_.on_message(message);
    }
  });
}

bool JobArbiter::holds_back(const rendezvous::ControlMessage& message) {
  if (!words_ || !asked_ || sees_job_ || job_.empty()) return false;
  unheard_.push_back(message);
  return true;
}

void JobArbiter::want(const rendezvous::WordWish& wish, const rendezvous::Seat& self) {
  words_->want(wish, self);
}

void JobArbiter::drop() {
  if (words_) words_->drop();
}

void JobArbiter::forget(WordSeeker::Done done) {
  if (!words_) return done("");
  words_->forget(std::move(done));
}

}  // namespace ddprun::launcher
