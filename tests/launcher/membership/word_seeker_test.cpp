// What a node asks its arbiter, in which order, and what it makes of the answers, with an arbiter
// in this process.
#include "launcher/membership/word_seeker.h"

#include <asio/executor_work_guard.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"
#include "tests/testing/patience.h"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::testing::check_contains;
using rendezvous::Word;

namespace {

// Calls come from other threads.
class MemoryArbiter : public rendezvous::Arbiter {
 public:
  void found(const std::string& job) override {
    const std::lock_guard lock(mutex_);
    jobs_.insert(job);
  }
  bool knows(const std::string& job) override {
    const std::lock_guard lock(mutex_);
    if (++looks == seen_at_look) jobs_.insert(job);
    if (fails) throw rendezvous::ArbiterError("no server");
    return jobs_.contains(job);
  }
  rendezvous::Claims carry_out(const std::string& job, const std::string& node_id,
                               const rendezvous::ArbiterTask& task) override {
    const std::lock_guard lock(mutex_);
    if (fails) throw rendezvous::ArbiterError("no server");
    if (!jobs_.contains(job)) return {};
    rendezvous::Claims& claims = rounds_[task.round];
    if (task.add && task.at == claims.count) {
      claims.last = *task.add;
      ++claims.count;
    }
    if (task.beat && claims.last.holder.node_id == node_id) claims.beat = task.beat;
    return claims;
  }
  void forget(const std::string& job) override {
    const std::lock_guard lock(mutex_);
    jobs_.erase(job);
  }
  std::string name() const override { return "--tie-breaker /shared/tie"; }

  std::set<std::string> jobs() {
    const std::lock_guard lock(mutex_);
    return jobs_;
  }
  std::uint64_t beat_of(const rendezvous::RoundName& round) {
    const std::lock_guard lock(mutex_);
    return rounds_[round].beat.value_or(0);
  }
  void fail(bool now) {
    const std::lock_guard lock(mutex_);
    fails = now;
  }

  int looks = 0;
  int seen_at_look = 0;  // What another node has founded is seen at this one.

 private:
  std::mutex mutex_;
  bool fails = false;
  std::set<std::string> jobs_;
  std::map<rendezvous::RoundName, rendezvous::Claims> rounds_;
};

constexpr rendezvous::RoundName the_round{0, 3};

struct SeekingNode {
  asio::io_context io;
  std::shared_ptr<MemoryArbiter> arbiter = std::make_shared<MemoryArbiter>();
  std::vector<Word> words;
  std::vector<std::string> done;  // Why each call was not.
  std::unique_ptr<WordSeeker> seeker;
  bool ends_at_word = false;

  explicit SeekingNode(std::chrono::milliseconds agree = testing::patience(60s)) {
    seeker = std::make_unique<WordSeeker>(
        io, arbiter,
        WordSeekerLimits{.claims = {.look_again = 1ms, .lapse = testing::patience(60s)},
                         .answer = testing::patience(60s),
                         .agree = agree},
        [this](const Word& word) {
          words.push_back(word);
          if (ends_at_word) seeker.reset();
        });
  }
  WordSeeker::Done note() {
    return [this](const std::string& why) { done.push_back(why); };
  }
  void want(bool keep = false, const std::string& node_id = "a") {
    seeker->want({.rounds = {the_round}, .term = 1, .keep = keep}, {.node_id = node_id});
  }
  template <class Condition>
  bool run_until(Condition condition) {
    const auto guard = asio::make_work_guard(io);
    const auto end = std::chrono::steady_clock::now() + testing::patience(60s);
    while (!condition() && std::chrono::steady_clock::now() < end) io.run_one_until(end);
    return condition();
  }
};

}  // namespace

TEST_CASE("16.1: a word is sought in the job that was founded", "[launcher][arbiter]") {
  SeekingNode node;
  node.seeker->found("7f3a", node.note());
  node.want();

  REQUIRE(node.run_until([&] { return !node.words.empty(); }));
  CHECK(node.done == std::vector<std::string>{""});
  CHECK(node.arbiter->jobs() == std::set<std::string>{"7f3a"});
  CHECK(node.words[0].kind == Word::Kind::Given);
  CHECK(node.words[0].term == 1);
  // As long as it is wanted its beat grows, in this node's name.
  const auto before = node.arbiter->beat_of(the_round);
  CHECK(node.run_until([&] { return node.arbiter->beat_of(the_round) > before + 2; }));
  CHECK(node.words.size() == 1);
}

TEST_CASE("16.1: a job that another node has founded is looked for until it is seen",
          "[launcher][arbiter]") {
  SeekingNode node;
  node.arbiter->seen_at_look = 3;
  node.seeker->join("7f3a", node.note());

  REQUIRE(node.run_until([&] { return !node.done.empty(); }));
  CHECK(node.done == std::vector<std::string>{""});
  CHECK(node.arbiter->looks == 3);
  node.want(/*keep=*/true);
  REQUIRE(node.run_until([&] { return !node.words.empty(); }));
  CHECK(node.words[0].kind == Word::Kind::Kept);
}

TEST_CASE("16.1: an arbiter that is not the job's is told of, with what it said",
          "[launcher][arbiter]") {
  for (const bool fails : {false, true}) {
    SeekingNode node(/*agree=*/0ms);
    node.arbiter->fail(fails);
    node.seeker->join("7f3a", node.note());

    REQUIRE(node.run_until([&] { return !node.done.empty(); }));
    node.io.restart();
    while (node.io.run_one() != 0 && node.done.size() == 1) continue;  // Until nothing is left.
    CHECK(node.done.size() == 1);
    check_contains(node.done[0], "--tie-breaker /shared/tie is not where the job's other nodes");
    CHECK((node.done[0].find(" (no server); give a path") != std::string::npos) == fails);
  }
}

TEST_CASE("16.1: an arbiter that cannot be asked is told of once, and asked again",
          "[launcher][arbiter]") {
  SeekingNode node;
  node.seeker->found("7f3a", node.note());
  REQUIRE(node.run_until([&] { return !node.done.empty(); }));
  node.arbiter->fail(true);
  node.want();

  REQUIRE(node.run_until([&] { return !node.words.empty(); }));
  CHECK(node.words[0].kind == Word::Kind::Unreached);
  CHECK(node.words[0].why == "no server");
  node.arbiter->fail(false);
  REQUIRE(node.run_until([&] { return node.words.size() > 1; }));
  CHECK(node.words[1].kind == Word::Kind::Given);
}

TEST_CASE("16.1: who hears the word may end what has sought it", "[launcher][arbiter]") {
  SeekingNode node;
  node.ends_at_word = true;
  node.seeker->found("7f3a", node.note());
  node.want();

  REQUIRE(node.run_until([&] { return !node.words.empty(); }));
  node.io.restart();
  node.io.run();  // Nothing is left that would come back.
  CHECK(node.words.size() == 1);
}

TEST_CASE("16.1: an answer to what is not wanted any more leads to nothing",
          "[launcher][arbiter]") {
  SeekingNode node;
  node.seeker->found("7f3a", node.note());
  node.want();
  node.seeker->drop();
  node.seeker->found("7f3a", node.note());  // Behind it.

  REQUIRE(node.run_until([&] { return node.done.size() == 2; }));
  node.io.restart();
  while (node.io.run_one() != 0 && node.words.empty()) continue;
  CHECK(node.words.empty());
}

TEST_CASE("16.1: what is not wanted any more is not sought, and a job that is over is forgotten",
          "[launcher][arbiter]") {
  SeekingNode node;
  node.seeker->found("7f3a", node.note());
  node.want();
  REQUIRE(node.run_until([&] { return !node.words.empty(); }));

  node.seeker->forget(node.note());
  REQUIRE(node.run_until([&] { return node.done.size() == 2; }));
  const auto beat = node.arbiter->beat_of(the_round);
  node.io.restart();
  node.io.run();
  CHECK(node.done[1].empty());
  CHECK(node.arbiter->jobs().empty());
  CHECK(node.arbiter->beat_of(the_round) == beat);
  CHECK(node.words.size() == 1);
}
