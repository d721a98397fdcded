// Turns by forwards, and that ranks whose gradients arrive in any order reduce in one.
#include "worker/torch/reduction_turns.h"

#include <random>
#include <string>

#include "tests/testing/catch.h"
#include "worker/torch/reducer_group.h"

namespace ddprun::worker {
namespace {

using Members = std::vector<ReductionTurns::Member>;

TEST_CASE("a member alone always has the turn", "[worker][ddp][turns]") {
  ReductionTurns turns;
  const auto alone = turns.enter();
  CHECK(turns.turn() == alone);
  turns.expect(alone);
  CHECK(turns.turn() == alone);
  CHECK(turns.pass(alone) == std::nullopt);
  CHECK(turns.sorted({alone}) == Members{alone});
}

TEST_CASE("the last forward has the first turn", "[worker][ddp][turns]") {
  ReductionTurns turns;
  const auto a = turns.enter(), b = turns.enter(), c = turns.enter();
  CHECK(turns.turn() == std::nullopt);
  for (const auto member : {a, b, c, a}) turns.expect(member);
  CHECK(turns.turn() == a);
  CHECK(turns.sorted({a, b, c}) == Members{a, c, b});
  CHECK(turns.sorted({b, c}) == Members{c, b});
  CHECK(turns.pass(a) == c);
  CHECK(turns.pass(b) == c);
  CHECK(turns.pass(c) == std::nullopt);
}

TEST_CASE("members that no forward announced come last, by number", "[worker][ddp][turns]") {
  ReductionTurns turns;
  const auto a = turns.enter(), b = turns.enter(), c = turns.enter();
  turns.expect(b);
  CHECK(turns.sorted({c, b, a}) == Members{b, a, c});
}

TEST_CASE("nobody waits for a member that has left", "[worker][ddp][turns]") {
  ReductionTurns turns;
  const auto a = turns.enter(), b = turns.enter(), c = turns.enter();
  for (const auto member : {a, b, c}) turns.expect(member);
  turns.leave(c);
  CHECK(turns.turn() == b);
  turns.leave(b);
  CHECK(turns.turn() == a);
  CHECK(turns.pass(a) == std::nullopt);
  CHECK(turns.turn() == a);       // Alone, it needs no forward.
  CHECK(turns.enter() == c + 1);  // No number is given twice: an old one may be on its way.
}

// Gradients are counted, buckets have one each, and what is launched is written down.
class FakeReducer : public ReducerGroup::Reducer {
 public:
  FakeReducer(std::string name, int buckets, std::string& log)
      : name_(std::move(name)), there_(static_cast<std::size_t>(buckets)), log_(log) {}

  void give(std::size_t bucket) { there_[bucket] = true, running_ = true; }
  void may_lack_some() { lenient_ = true; }

  bool is_running() const override { return running_; }
  bool can_finish() const override {
    return lenient_ || std::find(there_.begin(), there_.end(), false) == there_.end();
  }
  bool launch_full_buckets() override {
    for (; launched_ < there_.size() && there_[launched_]; ++launched_) {
      log_ += name_ + std::to_string(launched_) + " ";
    }
    return launched_ == there_.size() && !lenient_;
  }
  void finish() override {
    there_.assign(there_.size(), true);
    launch_full_buckets();
    log_ += name_ + "! ";
    there_.assign(there_.size(), false);
    launched_ = 0;
    running_ = false;
  }
  void pause() override { log_ += name_ + "~ "; }
  std::string unfinished_message() const override { return name_; }

 private:
  std::string name_;
  std::vector<bool> there_;
  std::string& log_;
  std::size_t launched_ = 0;
  bool running_ = false;
  bool lenient_ = false;
};

// Two rounds in which the gradients of a, b and c arrive in an order drawn from `seed`; those of c
// in the first round not at all, and of b, which may lack some, not all of them.
std::string launched(unsigned seed) {
  std::string log;
  ReducerGroup group;
  FakeReducer a("a", 3, log), b("b", 2, log), c("c", 2, log);
  b.may_lack_some();
  const auto in_a = group.enter(a), in_b = group.enter(b), in_c = group.enter(c);
  std::mt19937 random(seed);
  for (int round = 0; round < 2; ++round) {
    group.expect(in_c);
    group.expect(in_a);
    group.expect(in_b);
    std::vector<std::pair<FakeReducer*, std::size_t>> gradients{{&a, 0}, {&a, 1}, {&a, 2}, {&b, 0}};
    if (random() % 2 == 0) gradients.emplace_back(&b, 1);
    if (round == 1) gradients.insert(gradients.end(), {{&c, 0}, {&c, 1}});
    std::shuffle(gradients.begin(), gradients.end(), random);
    for (const auto& [reducer, bucket] : gradients) {
      const std::lock_guard lock(group.mutex());
      reducer->give(bucket);
      group.advance();
    }
    group.end_of_backward();
    group.end_of_backward();  // Each member asks for one.
    log += "| ";
  }
  for (const auto member : {in_a, in_b, in_c}) group.leave(member);
  return log;
}

TEST_CASE("whatever the order of arrival, reductions have one order", "[worker][ddp][turns]") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    CHECK(launched(seed) == "b0 b1 b! a0 a1 a2 a! | b0 b1 b! a0 a1 a2 a! c0 c1 c! | ");
  }
}

TEST_CASE("who has the turn reduces while backward goes on, and hands it on",
          "[worker][ddp][turns]") {
  std::string log;
  ReducerGroup group;
  FakeReducer a("a", 2, log), b("b", 1, log);
  const auto in_a = group.enter(a), in_b = group.enter(b);
  group.expect(in_a);
  group.expect(in_b);
  const auto give = [&](FakeReducer& reducer, std::size_t bucket) {
    const std::lock_guard lock(group.mutex());
    reducer.give(bucket);
    group.advance();
    return log;
  };

  CHECK(give(a, 0).empty());
  CHECK(give(b, 0) == "b0 a0 ");
  CHECK(give(a, 1) == "b0 a0 a1 ");
  group.end_of_backward();
  CHECK(log == "b0 a0 a1 a! b! ");  // Only waiting is left, in whatever order.
  group.leave(in_a);
  group.leave(in_b);
}

TEST_CASE("a member that lacks gradients holds up those behind it, and is named",
          "[worker][ddp][turns]") {
  std::string log;
  ReducerGroup group;
  FakeReducer a("a", 1, log), b("b", 2, log);
  const auto in_a = group.enter(a), in_b = group.enter(b);
  group.expect(in_a);
  group.expect(in_b);
  {
    const std::lock_guard lock(group.mutex());
    a.give(0);
    b.give(0);
    group.advance();
  }
  group.end_of_backward();
  CHECK(log == "b0 b~ a~ ");  // What is queued has ended, whoever holds up whom.
  REQUIRE(group.first_unfinished() != nullptr);
  CHECK(group.first_unfinished()->unfinished_message() == "b");
  group.leave(in_b);
  group.end_of_backward();
  CHECK(log == "b0 b~ a~ a0 a! ");
  group.leave(in_a);
}

}  // namespace
}  // namespace ddprun::worker
