// The schedule against PyTorch's rule, played with all short sequences of forwards.
#include "worker/torch/buffer_schedule.h"

#include <array>
#include <string>

#include "tests/testing/catch.h"

namespace ddprun::worker {
namespace {

// Two BatchNorms, and whether the forward's backward reduces.
struct Forward {
  bool first_trains, second_trains, reduces;
};

// Statistics of two ranks: what they have taken up, as text.
struct Ranks {
  std::array<std::array<std::string, 2>, 2> statistics;  // By rank and BatchNorm.

  void send() { statistics[1] = statistics[0]; }
  void train(const Forward& forward, std::size_t step) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const std::string taken = std::to_string(step) + (rank == 0 ? "a" : "b");
      if (forward.first_trains) statistics[rank][0] += taken;
      if (forward.second_trains) statistics[rank][1] += taken;
    }
  }
};

std::string text_of(const std::vector<Forward>& forwards) {
  std::string text;
  for (const Forward& f : forwards) {
    text += std::string(f.first_trains ? "T" : "e") + (f.second_trains ? "T" : "e") +
            (f.reduces ? "" : "-") + " ";
  }
  return text;
}

// Plays both; returns false where a forward reads other statistics than PyTorch's. Counts what was
// sent.
bool reads_the_same(const std::vector<Forward>& forwards, std::array<int, 2>& sent) {
  Ranks pytorch, ours;
  bool last_reduced = true;
  BufferSchedule schedule(2, /*others=*/false);
  for (std::size_t step = 0; step < forwards.size(); ++step) {
    const Forward& forward = forwards[step];
    if (last_reduced) pytorch.send(), ++sent[0];
    last_reduced = forward.reduces;
    if (schedule.before_forward({forward.first_trains, forward.second_trains}, forward.reduces)) {
      ours.send(), ++sent[1];
    }
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const auto& theirs = pytorch.statistics[rank];
      if (!forward.first_trains && ours.statistics[rank][0] != theirs[0]) return false;
      if (!forward.second_trains && ours.statistics[rank][1] != theirs[1]) return false;
    }
    pytorch.train(forward, step);
    ours.train(forward, step);
  }
  return true;
}

TEST_CASE("every forward reads the statistics that it would read in PyTorch",
          "[worker][ddp][buffers]") {
  constexpr std::size_t length = 5;
  std::array<int, 2> sent{};
  for (unsigned code = 0; code < 1u << (3 * length); ++code) {
    std::vector<Forward> forwards;
    for (std::size_t i = 0; i < length; ++i) {
      const unsigned bits = code >> (3 * i);
      forwards.push_back({(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
    }
    const bool same = reads_the_same(forwards, sent);
    if (!same) FAIL_CHECK(text_of(forwards));
  }
  CHECK(sent[1] < sent[0] / 2);
}

TEST_CASE("training with two kinds of forward sends running statistics when they are read",
          "[worker][ddp][buffers]") {
  BufferSchedule schedule(1, false);
  for (int step = 0; step < 3; ++step) CHECK_FALSE(schedule.before_forward({true}, true));
  CHECK(schedule.before_forward({false}, false));
  for (int step = 0; step < 3; ++step) CHECK_FALSE(schedule.before_forward({false}, false));
  for (int step = 0; step < 3; ++step) CHECK_FALSE(schedule.before_forward({true}, true));
  CHECK(schedule.before_forward({false}, true));  // Set to eval() alone, in a training module.
  CHECK_FALSE(schedule.before_forward({false}, true));
}

TEST_CASE("other buffers are sent before each forward that follows one that reduces",
          "[worker][ddp][buffers]") {
  BufferSchedule schedule(0, true);
  CHECK(schedule.before_forward({}, false));
  CHECK_FALSE(schedule.before_forward({}, true));
  CHECK(schedule.before_forward({}, true));
  CHECK(schedule.before_forward({}, false));
  CHECK_FALSE(schedule.before_forward({}, false));
}

TEST_CASE("statistics that were sent by hand need no broadcast", "[worker][ddp][buffers]") {
  BufferSchedule schedule(1, false);
  schedule.before_forward({true}, true);
  schedule.were_sent();
  CHECK_FALSE(schedule.before_forward({false}, false));
}

}  // namespace
}  // namespace ddprun::worker
