// Every call goes out with copies of all that it needs: it may still be under way when this object,
// and the agent, are gone.
#include "launcher/membership/word_seeker.h"

#include <fmt/format.h>

#include <utility>

#include "rendezvous/time_text.h"

namespace ddprun::launcher {

using Clock = std::chrono::steady_clock;
using rendezvous::Arbiter;
using rendezvous::ArbiterReply;
using rendezvous::Claims;
using rendezvous::time_text;

WordSeeker::WordSeeker(asio::io_context& io, std::shared_ptr<Arbiter> arbiter,
                       const WordSeekerLimits& limits, OnWord on_word)
    : arbiter_(std::move(arbiter)),
      limits_(limits),
      on_word_(std::move(on_word)),
      core_(limits.claims),
      timer_(io),
      look_again_(io),
      calls_(io, arbiter_->name(), limits.answer) {}

void WordSeeker::found(const std::string& job, Done done) {
  job_ = job;
  calls_.add([arbiter = arbiter_, job] { arbiter->found(job); }, std::move(done));
}

void WordSeeker::join(const std::string& job, Done done) {
  job_ = job;
  joined_ = std::move(done);
  look_for_job(Clock::now() + limits_.agree);
}

// Again and again: what one client of a file server has made, another may see a while later.
void WordSeeker::look_for_job(Clock::time_point until) {
  const auto known = std::make_shared<bool>(false);
  calls_.add(
      [arbiter = arbiter_, job = job_, known] { *known = arbiter->knows(job); },
      [this, until, known](const std::string& why) {
        if (why.empty() && *known) return joined_("");
        if (Clock::now() >= until) {
          return joined_(fmt::format(
              "{} is not where the job's other nodes have it: what node 0 wrote there is not seen "
              "here after {}{}; give a path on a file system that all nodes share",
              arbiter_->name(), time_text(limits_.agree), why.empty() ? "" : " (" + why + ")"));
        }
        look_again_.expires_after(std::chrono::milliseconds(100));
        look_again_.async_wait(
            [this, until, weak = std::weak_ptr(alive_)](const asio::error_code& error) {
              if (weak.lock() && !error) look_for_job(until);
            });
      });
}

void WordSeeker::want(rendezvous::WordWish wish, rendezvous::Seat self) {
  node_id_ = self.node_id;
  core_.want(std::move(wish), std::move(self), Clock::now());
  work();
}

void WordSeeker::drop() {
  core_.drop();
  timer_.cancel();
}

void WordSeeker::work() {
  const auto task = core_.next(Clock::now());
  if (!task) return wait();
  const auto claims = std::make_shared<Claims>();
  calls_.add([arbiter = arbiter_, job = job_, id = node_id_, task = *task,
              claims] { *claims = arbiter->carry_out(job, id, task); },
             [this, claims](const std::string& why) {
               ArbiterReply reply{.claims = {}, .why = why};
               if (why.empty()) reply.claims = *claims;
               const std::weak_ptr<int> weak = alive_;
               const auto word = core_.answered(reply, Clock::now());
               if (word) on_word_(*word);
               if (weak.lock()) work();
             });
}

void WordSeeker::wait() {
  timer_.cancel();
  const auto next = core_.next_tick();
  if (!next) return;
  timer_.expires_at(*next);
  timer_.async_wait([this, weak = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (weak.lock() && !error) work();
  });
}

void WordSeeker::forget(Done done) {
  drop();
  calls_.add([arbiter = arbiter_, job = job_] { arbiter->forget(job); }, std::move(done));
}

}  // namespace ddprun::launcher
