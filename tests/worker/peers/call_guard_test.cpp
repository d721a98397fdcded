// Which calls are let through, and what the others end with.
#include "worker/peers/call_guard.h"

#include <latch>
#include <thread>

#include "tests/testing/catch.h"
#include "tests/testing/spaced_numbers.h"
#include "tests/testing/text.h"

using namespace ddprun::worker;
using ddprun::testing::message_of;

namespace {

// Instead of connections: whose reasons would be sent to the other ranks.
class Group final : public Abortable {
 public:
  void abort(const std::string& reason) noexcept override {
    if (record(reason)) told.push_back(reason);
  }
  std::vector<std::string> told;
};

const float data[4] = {};

}  // namespace

TEST_CASE("collectives are numbered, and messages by peer and direction", "[worker][guard]") {
  Group group;
  CallGuard guard(1, 3, group);

  CHECK(guard.begin(CallKind::Barrier, 0, DataType::UInt8, {}).sequence == 1);
  const Call call =
      guard.begin(CallKind::Broadcast, 4, DataType::Float32, {data}, ReduceOp::Sum, 2);
  CHECK(to_string(call) == "broadcast(count=4, float32, root=2), call 2");
  {
    const ddprun::testing::SpacedNumbers locale;
    CHECK(to_string(Call{.sequence = 1'000, .kind = CallKind::Barrier}) == "barrier(), call 1000");
  }

  const auto message = [&](int peer, bool sends) {
    return guard.begin_message("isend", data, 4, DataType::Float32, peer, sends).sequence;
  };
  CHECK(message(0, true) == 1);
  CHECK(message(2, true) == 1);
  CHECK(message(0, false) == 1);
  CHECK(message(0, true) == 2);
  CHECK_FALSE(group.aborted());
}

TEST_CASE("a call that cannot be done ends the group, and every later one has the same reason",
          "[worker][guard]") {
  using Begin = void (*)(CallGuard&);
  const std::pair<Begin, std::string> cases[] = {
      {[](CallGuard& guard) {
         guard.begin(CallKind::AllReduce, SIZE_MAX / 32, DataType::Float32, {data});
       },
       "this many elements do not fit any memory"},
      {[](CallGuard& guard) {
         guard.begin(CallKind::AllReduce, 4, DataType::Int32, {data}, ReduceOp::Average);
       },
       "the average of integers is not an integer: use sum"},
      {[](CallGuard& guard) {
         guard.begin(CallKind::AllGather, 4, DataType::Float32, {data, nullptr});
       },
       "the data is a null pointer"},
      {[](CallGuard& guard) {
         guard.begin(CallKind::Broadcast, 4, DataType::Float32, {data}, ReduceOp::Sum, 3);
       },
       "there is no such root"},
      {[](CallGuard& guard) { guard.begin_message("send", nullptr, 4, DataType::Int64, 2, true); },
       "the data is a null pointer"},
  };
  for (const auto& [begin, problem] : cases) {
    Group group;
    CallGuard guard(1, 3, group);
    const std::string error = message_of<CommunicatorError>([&, begin = begin] { begin(guard); });
    INFO(error);
    CHECK(error.find(" failed on rank 1: rank 1: " + problem) != std::string::npos);
    CHECK(group.told == std::vector<std::string>{"rank 1: " + problem});

    CHECK(message_of<CommunicatorError>([&] {
            guard.begin(CallKind::Barrier, 0, DataType::UInt8, {});
          }).ends_with("failed on rank 1: rank 1: " + problem));
    CHECK(message_of<CommunicatorError>([&] {
            guard.begin_message("recv", data, 4, DataType::Float32, 0, false);
          }).ends_with("failed on rank 1: rank 1: " + problem));
    CHECK(message_of<CommunicatorError>([&] {
            guard.fail(Call{}, "a consequence");
          }).ends_with("failed on rank 1: rank 1: " + problem));
    CHECK(group.told.size() == 1);
  }
}

TEST_CASE("a failure that was to be told by others is told by the next call, unless they have",
          "[worker][guard]") {
  for (const bool told : {false, true}) {
    Group group;
    CallGuard guard(1, 3, group);
    group.abort_unless_told("rank 1 failed: somehow");
    CHECK_FALSE(group.aborted());
    if (told) group.abort("rank 1 failed: in its words");

    const std::string reason = told ? "rank 1 failed: in its words" : "rank 1 failed: somehow";
    CHECK(message_of<CommunicatorError>([&] {
            guard.begin(CallKind::Barrier, 0, DataType::UInt8, {});
          }).ends_with("failed on rank 1: " + reason));
    CHECK(group.told == std::vector<std::string>{reason});
  }
}

TEST_CASE("null pointers are taken where there are no elements", "[worker][guard]") {
  Group group;
  CallGuard guard(0, 2, group);
  CHECK_NOTHROW(guard.begin(CallKind::AllReduce, 0, DataType::Float32, {nullptr}));
  CHECK_NOTHROW(guard.begin_message("send", nullptr, 0, DataType::Float32, 1, true));
  CHECK_FALSE(group.aborted());
}

TEST_CASE("a message to a rank that there is not is an error of the caller alone",
          "[worker][guard]") {
  Group group;
  CallGuard guard(1, 3, group);
  for (const int peer : {-1, 1, 3}) {
    CHECK(message_of<CommunicatorError>([&] {
            guard.begin_message("irecv", data, 4, DataType::Float32, peer, false);
          }) == "irecv: there is no other rank " + std::to_string(peer) + " among 3");
  }
  CHECK_FALSE(group.aborted());
  CHECK(guard.begin_message("irecv", data, 4, DataType::Float32, 0, false).sequence == 1);
}

TEST_CASE("of threads that abort at once one gives the reason, and all find it",
          "[worker][guard]") {
  for (int round = 0; round < 50; ++round) {
    Group group;
    CallGuard guard(0, 2, group);
    std::latch together(4);
    std::array<std::string, 4> errors;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < errors.size(); ++i) {
      threads.emplace_back([&, i] {
        together.arrive_and_wait();
        errors[i] = message_of<CommunicatorError>(
            [&] { guard.fail(Call{}, "reason " + std::to_string(i)); });
      });
    }
    for (std::thread& thread : threads) thread.join();

    REQUIRE(group.told.size() == 1);
    CHECK(group.reason() == group.told.front());
    for (const std::string& error : errors) {
      CHECK(error.ends_with("failed on rank 0: " + group.told.front()));
    }
  }
}

TEST_CASE("a second thread inside a call ends the group", "[worker][guard]") {
  Group group;
  CallGuard guard(1, 3, group);
  { const CallGuard::Inside before(guard); }
  const CallGuard::Inside inside(guard);
  std::string error;
  std::thread([&] {
    error = message_of<CommunicatorError>([&] { const CallGuard::Inside second(guard); });
  }).join();
  CHECK(error.find("rank 1: a second thread is inside a call") == 0);
  CHECK(group.told == std::vector<std::string>{error});
}

TEST_CASE("an abort without a reason says so", "[worker][guard]") {
  Group group;
  CallGuard guard(0, 2, group);
  group.abort("");
  CHECK(message_of<CommunicatorError>([&] {
          guard.begin(CallKind::Barrier, 0, DataType::UInt8, {});
        }) == "barrier(), call 1 failed on rank 0: aborted without a reason");
}
