// After which step all ranks stop: played through by ranks that hear the same results.
#include "trainer/stopping/stop_agreement.h"

#include <limits>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"

using namespace ddprun::trainer;

namespace {

// Beats until the next vote, with the result of which `agreement` then goes on.
int beats_to_vote(StopAgreement& agreement, const StopBallot& result) {
  int beats = 1;
  while (!agreement.beat(/*spent_s=*/0)) ++beats;
  agreement.conclude(result);
  return beats;
}

}  // namespace

TEST_CASE("votes are half a second apart at the pace of the slowest rank", "[trainer][stop]") {
  StopAgreement agreement(2);
  std::vector<int> gaps;
  for (int vote = 0; vote < 8; ++vote) {
    gaps.push_back(beats_to_vote(agreement, {StopReason::None, 0.01}));
  }
  CHECK(gaps == std::vector<int>{1, 2, 4, 8, 16, 32, 50, 50});

  CHECK(beats_to_vote(agreement, {StopReason::None, 30}) == 50);  // Steps have become slow ...
  CHECK(beats_to_vote(agreement, {StopReason::None, 30}) == 1);   // ... which the next vote knows.
}

TEST_CASE("a pace that cannot be measured never ends the votes", "[trainer][stop]") {
  for (const double beat_s : {0.0, 1e-300, std::numeric_limits<double>::quiet_NaN()}) {
    StopAgreement agreement(8);
    int gap = 0;
    for (int vote = 0; vote < 20; ++vote) {
      gap = beats_to_vote(agreement, {StopReason::None, beat_s});
    }
    CHECK(gap == 1000);
  }
  StopAgreement stuck(8);
  for (int vote = 0; vote < 3; ++vote) {
    CHECK(beats_to_vote(stuck, {StopReason::None, std::numeric_limits<double>::infinity()}) == 1);
  }
}

TEST_CASE("all ranks vote at the same beats and stop at the same one", "[trainer][stop]") {
  // Of each rank its own wish and pace; the fourth is told to stop before step 700.
  const std::vector<double> pace_s{0.004, 0.005, 0.0045, 0.004};
  std::vector<StopAgreement> ranks(pace_s.size(), StopAgreement(4));
  std::int64_t stopped_at = 0;
  for (std::int64_t step = 1; stopped_at == 0; ++step) {
    REQUIRE(step < 1000);
    int voters = 0;
    StopBallot result;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto beat_s = ranks[rank].beat(pace_s[rank]);
      if (!beat_s) continue;
      ++voters;
      const bool told = rank == 3 && step >= 700;
      result.reason = std::max(result.reason, told ? StopReason::Terminated : StopReason::None);
      result.beat_s = std::max(result.beat_s, *beat_s);
    }
    REQUIRE((voters == 0 || voters == 4));
    if (voters == 0) continue;
    for (StopAgreement& rank : ranks) REQUIRE(rank.conclude(result) == result.reason);
    if (result.reason != StopReason::None) stopped_at = step;
  }
  CHECK(stopped_at >= 700);
  CHECK(stopped_at <= 800);  // Within half a second of the slowest.
}

TEST_CASE("a beat takes the mean since the last vote among those of its kind", "[trainer][stop]") {
  StopAgreement agreement(2);
  CHECK(agreement.beat(3) == 3.0);
  agreement.conclude({StopReason::None, 0.01});  // The next vote is after two beats.
  CHECK_FALSE(agreement.beat(1));
  agreement.now(BeatKind::Validation, 0.5);  // Of what comes before the validation.
  CHECK(agreement.beat(40) == 40.0);
  agreement.conclude({StopReason::None, 0.01});
  agreement.now(BeatKind::Step, 20);
  CHECK(agreement.beat(2.5) == 2.0);
  agreement.conclude({StopReason::None, 100});
  CHECK(agreement.beat(7) == 7.0);
  agreement.now(BeatKind::Validation, 0);
  CHECK_FALSE(agreement.beat(2));
  CHECK(agreement.beat(8) == 15.0);
}

TEST_CASE("a process alone decides after each step", "[trainer][stop]") {
  StopAgreement agreement(1);
  for (int step = 0; step < 5; ++step) {
    CHECK(beats_to_vote(agreement, {StopReason::None, 0.001}) == 1);
  }
}

TEST_CASE("patience covers several votes of slow steps", "[trainer][stop]") {
  StopAgreement agreement(2);
  CHECK(agreement.patience_s() >= 5);
  beats_to_vote(agreement, {StopReason::None, 20});
  CHECK(agreement.patience_s() >= 60);
}

TEST_CASE("votes among slow steps do not go by the pace of a validation", "[trainer][stop]") {
  StopAgreement agreement(2);
  agreement.now(BeatKind::Validation, /*spent_s=*/0);
  int gap = 0;
  for (int vote = 0; vote < 8; ++vote) gap = beats_to_vote(agreement, {StopReason::None, 0.01});
  REQUIRE(gap == 50);

  agreement.now(BeatKind::Step, /*spent_s=*/0);
  constexpr double step_s = 1;
  const double patience_s = agreement.patience_s();
  CHECK(beats_to_vote(agreement, {StopReason::None, step_s}) * step_s <= patience_s);

  agreement.now(BeatKind::Validation, /*spent_s=*/0);  // Whose pace is known from before.
  CHECK(beats_to_vote(agreement, {StopReason::None, 0.01}) == 50);
}

TEST_CASE("passes that are shorter than the distance between votes have votes, too",
          "[trainer][stop]") {
  StopAgreement agreement(2);
  int votes = 0;
  for (int epoch = 0; epoch < 100; ++epoch) {
    for (const BeatKind kind : {BeatKind::Step, BeatKind::Validation}) {
      agreement.now(kind, /*spent_s=*/0);
      for (int beat = 0; beat < 10; ++beat) {
        if (!agreement.beat(/*spent_s=*/0)) continue;
        agreement.conclude({StopReason::None, 0.01});
        if (epoch >= 50) ++votes;
      }
    }
  }
  CHECK(votes == 20);  // Of 500 beats of each kind.
}

TEST_CASE("patience covers a signal that is first heard among beats of the other kind",
          "[trainer][stop]") {
  StopAgreement agreement(2);
  constexpr double step_s = 30;
  beats_to_vote(agreement, {StopReason::None, step_s});
  agreement.now(BeatKind::Validation, /*spent_s=*/0);
  for (int vote = 0; vote < 8; ++vote) beats_to_vote(agreement, {StopReason::None, 0.01});
  CHECK(agreement.patience_s() >= 4 * step_s);

  StopAgreement slow(2);  // And the other way round: a validation that has not been left yet.
  slow.now(BeatKind::Validation, /*spent_s=*/0);
  beats_to_vote(slow, {StopReason::None, step_s});
  slow.now(BeatKind::Step, /*spent_s=*/0);
  CHECK(slow.patience_s() >= 4 * step_s);
}

TEST_CASE("a stop asks to be queued again, Ctrl-C does not", "[trainer][stop]") {
  CHECK(exit_status_of(StopReason::None) == 0);
  CHECK(exit_status_of(StopReason::TimeUp) == 75);
  CHECK(exit_status_of(StopReason::Asked) == 75);
  CHECK(exit_status_of(StopReason::Terminated) == 75);
  CHECK(exit_status_of(StopReason::HungUp) == 129);
  CHECK(exit_status_of(StopReason::Interrupted) == 130);
}

TEST_CASE("a stop says what is kept and how to go on", "[trainer][stop]") {
  CHECK(stop_text({StopReason::Terminated, 812, 2, "ck6", "auto"}) ==
        "SIGTERM: saved step 812 (epoch 3) in ck6; the same command goes on");
  CHECK(contains(stop_text({StopReason::Interrupted, 812, 2, "ck6", "none"}), "--resume auto"));
  CHECK(stop_text({StopReason::HungUp, 812, 2, "ck6", "auto"}).starts_with("SIGHUP: saved step"));
  // A scheduler that sends both means its SIGTERM.
  CHECK(StopReason::HungUp < StopReason::Terminated);
  const std::string lost = stop_text({StopReason::TimeUp, 812, 2, "", "auto"});
  CHECK(contains(lost, "nothing is kept"));
  CHECK(contains(lost, "--checkpoint-dir"));
}
