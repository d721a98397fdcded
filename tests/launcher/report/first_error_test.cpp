// Who is to blame, as a table; and what is read from error files for it.
#include "launcher/report/first_error.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "launcher/report/regular_file.h"
#include "rendezvous/json/json_text.h"
#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::launcher;
namespace rendezvous = ddprun::rendezvous;

namespace {

constexpr WallNs ms = 1'000'000;
constexpr WallNs t = 1'700'000'000'000 * ms;  // A whole second.
const ErrorFileTimes times{
    .modified = t + 2'340 * ms, .attempt_began = t - 5'000 * ms, .now = t + 9'000 * ms};

std::string nested(const std::string& stamp) {
  return R"({"message": {"message": "KeyError", "extraInfo": {"py_callstack": "KeyError", )"
         R"("timestamp": )" +
         stamp + "}}}";
}

int blamed(const FirstEnd& end, const std::vector<RecordedError>& errors) {
  const FirstError first = first_error(end, errors);
  CHECK_FALSE(first.reason.empty());
  return first.local_rank;
}

}  // namespace

TEST_CASE("14.2: an error that was recorded before the first end's own is the first",
          "[launcher][first_error]") {
  const FirstEnd end{.local_rank = 1, .at = t + 1'500 * ms};

  CHECK(blamed(end, {{.local_rank = 0, .at = t}, {.local_rank = 1, .at = t + 1'499 * ms}}) == 0);
  CHECK(blamed(end, {{.local_rank = 0, .at = t + 1'498 * ms},
                     {.local_rank = 1, .at = t + 1'499 * ms}}) == 0);
  CHECK(blamed(end, {{.local_rank = 0, .at = t + 9 * ms},
                     {.local_rank = 1, .at = t + 20 * ms},
                     {.local_rank = 2, .at = t}}) == 2);
}

TEST_CASE("what a worker's child writes behind its end makes its own error no later",
          "[launcher][first_error]") {
  const FirstEnd end{.local_rank = 1, .at = t + 1'500 * ms};

  CHECK(blamed(end, {{.local_rank = 0, .at = t + 1'600 * ms},
                     {.local_rank = 1, .at = t + 1'700 * ms}}) == 1);
}

TEST_CASE("errors recorded later, or at the same time, blame nobody", "[launcher][first_error]") {
  const FirstEnd end{.local_rank = 1, .at = t + 1'500 * ms};

  CHECK(blamed(end, {}) == 1);
  CHECK(blamed(end, {{.local_rank = 1, .at = t}}) == 1);
  CHECK(blamed(end, {{.local_rank = 0, .at = t + 700 * ms},
                     {.local_rank = 1, .at = t + 700 * ms}}) == 1);
  CHECK(blamed(end, {{.local_rank = 0, .at = t + 701 * ms},
                     {.local_rank = 1, .at = t + 700 * ms}}) == 1);
}

TEST_CASE("whoever dies without a word is outranked only by an error that its death cannot explain",
          "[launcher][first_error]") {
  const FirstEnd killed{.local_rank = 1, .at = t + 2'000 * ms};

  CHECK(blamed(killed, {{.local_rank = 0, .at = t + 1'999 * ms}}) ==
        1);  // Noticed before it was seen.
  CHECK(blamed(killed, {{.local_rank = 0, .at = t + 1'000 * ms}}) == 1);
  CHECK(blamed(killed, {{.local_rank = 0, .at = t + 999 * ms}}) == 0);
}

TEST_CASE("14.11: exact times tell two errors apart that share a tick of the file system's clock",
          "[launcher][first_error]") {
  const FirstEnd end{.local_rank = 1, .at = t + 1'500 * ms};
  const RecordedError cause{.local_rank = 0, .at = t + 7, .exact = true};
  const RecordedError other{.local_rank = 1, .at = t + 8, .exact = true};

  CHECK(blamed(end, {cause, other}) == 0);
  CHECK(blamed({.local_rank = 0, .at = end.at}, {cause, other}) == 0);
  CHECK(blamed(end, {{.local_rank = 0, .at = t + 8, .exact = true},
                     {.local_rank = 1, .at = t + 7, .exact = true}}) == 1);
}

TEST_CASE("a file system's time is late by up to a tick, and is before an exact one by more only",
          "[launcher][first_error]") {
  const FirstEnd end{.local_rank = 1, .at = t + 1'500 * ms};

  CHECK(blamed(end, {{.local_rank = 0, .at = t},
                     {.local_rank = 1, .at = t + 10 * ms, .exact = true}}) == 1);
  CHECK(blamed(end, {{.local_rank = 0, .at = t},
                     {.local_rank = 1, .at = t + 11 * ms, .exact = true}}) == 0);
  CHECK(blamed(end, {{.local_rank = 0, .at = t, .exact = true}, {.local_rank = 1, .at = t + 1}}) ==
        0);
}

TEST_CASE("14.11: who failed of a peer is not blamed before one who names an error of its own",
          "[launcher][first_error]") {
  const FirstEnd end{.local_rank = 1, .at = t + 1'500 * ms};
  const RecordedError victim{.local_rank = 1, .at = t, .of_a_peer = true};

  CHECK(blamed(end, {{.local_rank = 0, .at = t}, victim}) == 0);  // Both in one tick.
  CHECK(blamed(end, {{.local_rank = 0, .at = t + 1'000 * ms, .exact = true}, victim}) == 0);
  CHECK(blamed(end, {{.local_rank = 0, .at = t + 6'000 * ms, .exact = true}, victim}) == 0);
  CHECK(blamed(end, {{.local_rank = 0, .at = t + 6'001 * ms, .exact = true}, victim}) == 1);
  CHECK(blamed(end, {{.local_rank = 0, .at = t, .of_a_peer = true}, victim}) == 1);
  CHECK(blamed({.local_rank = 0, .at = end.at}, {{.local_rank = 0, .at = t + 5}, victim}) == 0);
  // One that said so long before the other failed was a victim of somebody else.
  CHECK(blamed({.local_rank = 0, .at = t + 7'000 * ms},
               {{.local_rank = 0, .at = t + 6'001 * ms}, victim}) == 1);
  // What the error file says counts, and not last words that do not say it again.
  CHECK(blamed(end, {{.local_rank = 0, .at = t - 1'000 * ms, .of_a_peer = true}, victim}) == 0);
}

TEST_CASE("14.2: last words of a lost peer count like an error file that says so",
          "[launcher][first_error]") {
  const FirstEnd victim{.local_rank = 1, .at = t, .of_a_peer = true};
  const FirstEnd cause{.local_rank = 1, .at = t + 3'000 * ms};

  CHECK(blamed(victim, {{.local_rank = 0, .at = t + 3'000 * ms}}) == 0);
  CHECK(blamed(victim, {{.local_rank = 0, .at = t + 3'000 * ms, .of_a_peer = true}}) == 1);
  CHECK(blamed(cause, {{.local_rank = 0, .at = t, .of_a_peer = true}}) == 1);
}

TEST_CASE("14.2: the reason says which errors were compared, and by how much they differ",
          "[launcher][first_error]") {
  const FirstEnd end{.local_rank = 1, .at = t + 3'000 * ms};
  const auto reason = [&](const std::vector<RecordedError>& errors) {
    return first_error(end, errors).reason;
  };
  const RecordedError victim{.local_rank = 1, .at = t + 2'000 * ms, .of_a_peer = true};

  CHECK(reason({}) == "it ended first, and no error is clearly older");
  CHECK(reason({{.local_rank = 1, .at = t}}) ==
        "it ended first, and no error is older than its own");
  CHECK(reason({{.local_rank = 0, .at = t + 1'500 * ms}}) ==
        "it recorded its error 1500 ms before local rank 1 ended");
  CHECK(reason({{.local_rank = 0, .at = t + 750 * ms - 500'000},
                {.local_rank = 1, .at = t + 750 * ms}}) ==
        "it recorded its error 0.500 ms before local rank 1 recorded one");
  CHECK(reason({{.local_rank = 0, .at = t + 2'300 * ms}, victim}) ==
        "local rank 1 says that a peer's end was its error, and this rank named another one 300 ms "
        "later");
  CHECK(reason({{.local_rank = 0, .at = victim.at}, victim}) ==
        "local rank 1 says that a peer's end was its error, and this rank named another one 0 ms "
        "later");
}

TEST_CASE("14.2: the cause is to come while one that runs is silent and the others lost a peer",
          "[launcher][first_error]") {
  const RecordedError victim{.local_rank = 1, .at = t, .of_a_peer = true, .ended = true};
  const RecordedError own{.local_rank = 0, .at = t};

  CHECK(cause_is_to_come({victim}, 1));
  CHECK_FALSE(cause_is_to_come({victim}, 0));
  CHECK_FALSE(cause_is_to_come({victim, own}, 1));
  CHECK_FALSE(cause_is_to_come({victim, own}, 2));  // Named already.
  // One more that says so, and has not ended yet, is none that could say something else.
  CHECK_FALSE(cause_is_to_come({victim, {.local_rank = 0, .at = t, .of_a_peer = true}}, 1));
  CHECK(cause_is_to_come({victim, {.local_rank = 0, .at = t, .whole = false}}, 1));
}

TEST_CASE("an error that was survived, and one that is half written, count for nothing",
          "[launcher][first_error]") {
  const FirstEnd end{.local_rank = 1, .at = t + 5'000 * ms};

  CHECK(blamed(end, {{.local_rank = 0, .at = t, .ended = true, .succeeded = true}}) == 1);
  CHECK(blamed(end, {{.local_rank = 0, .at = t, .whole = false}}) == 1);
  CHECK(blamed(end, {{.local_rank = 0, .at = t, .whole = false, .ended = true}}) == 0);
}

TEST_CASE("within the second of its time stamp a file's own time tells when",
          "[launcher][first_error]") {
  CHECK(parse_error_file(nested("\"1700000002\""), times).recorded_at == t + 2'340 * ms);
  CHECK(parse_error_file(nested("1700000002"), times).recorded_at == t + 2'340 * ms);
  CHECK(parse_error_file(nested("\"1700000001\""), times).recorded_at == t + 2'000 * ms - 1);
  CHECK(parse_error_file(R"({"message": "m", "timestamp": 1700000000})", times).recorded_at ==
        t + 1'000 * ms - 1);
}

TEST_CASE("14.11: a time stamp in nanoseconds is taken as it is", "[launcher][first_error]") {
  const std::string seconds = R"("1700000002", "timestamp_ns": )";
  const ErrorFile exact = parse_error_file(nested(seconds + "1700000002000000345"), times);
  CHECK(exact.recorded_at == t + 2'000 * ms + 345);
  CHECK(exact.exact);

  // Outside of the attempt, or no number: what is left are torch's seconds.
  for (const char* wrong : {"1600000000000000000", "1700000002", "1.7e18", "null", "[]"}) {
    const ErrorFile coarse = parse_error_file(nested(seconds + wrong), times);
    CHECK(coarse.recorded_at == times.modified);
    CHECK_FALSE(coarse.exact);
  }
}

TEST_CASE("a time stamp that cannot be, or is none, is not believed", "[launcher][first_error]") {
  for (const char* stamp : {"\"1600000000\"", "1700000000123", "\"-1\"", "\"yesterday\"", "\"\"",
                            "1.5", "null", "\"99999999999999999999\""}) {
    INFO(stamp);
    CHECK(parse_error_file(nested(stamp), times).recorded_at == times.modified);
  }
  CHECK(parse_error_file("no JSON", times).recorded_at == times.modified);
  CHECK_FALSE(parse_error_file("no JSON", times).whole);
  CHECK(parse_error_file(nested("1"), times).whole);
}

TEST_CASE("17.1: an error file that says so, and no other, is one of wrong usage",
          "[launcher][error_file]") {
  const auto says = [](const std::string& file) {
    return parse_error_file(file, times).usage_error;
  };
  CHECK(says(nested(R"("1700000002", "usage_error": true)")));
  CHECK(says(R"({"message": "m", "usage_error": true})"));
  for (const char* other : {"false", "1", "\"true\"", "null", "[true]"}) {
    CHECK_FALSE(says(nested(std::string(R"("1700000002", "usage_error": )") + other)));
  }
  CHECK_FALSE(says(nested("\"1700000002\"")));
  CHECK_FALSE(says("usage_error: true"));
  CHECK_FALSE(says("[true]"));
}

TEST_CASE("14.8: a message that equals its call stack is told once", "[launcher][first_error]") {
  CHECK(error_file_message(nested("\"1\"")) == "KeyError");
}

TEST_CASE("14.4: torch's error files are passed on with the error code",
          "[launcher][first_error]") {
  const std::string passed = with_error_code(nested("\"1\""), -9);

  CHECK(passed.find("\"errorCode\": -9") != std::string::npos);
  CHECK(error_file_message(passed) == "KeyError");
  CHECK(with_error_code(R"({"message":"flat"})", 3).find("errorCode") == std::string::npos);
  CHECK(error_file_message(with_error_code(R"({"message":"flat"})", 3)) == "flat");
  CHECK(with_error_code("half", 3).empty());
  CHECK(with_error_code("{}", 3).empty());
  // A file of nothing but brackets would be written indented, a hundred thousand times as long.
  const auto deep = [](std::size_t levels) {
    return R"({"message":)" + std::string(levels, '[') + std::string(levels, ']') + "}";
  };
  CHECK_FALSE(with_error_code(deep(rendezvous::json_depth_max - 1), 3).empty());
  CHECK(with_error_code(deep(rendezvous::json_depth_max), 3).empty());
}

TEST_CASE("14.4: what is no regular file is not read, and of a huge one the begin",
          "[launcher][first_error]") {
  const ddprun::testing::TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  std::ofstream(folder / "huge") << "begin";
  REQUIRE(::truncate((folder / "huge").c_str(), INT64_C(1) << 40) == 0);

  CHECK_FALSE(read_regular_file(folder / "fifo", 10));  // Would hang.
  CHECK_FALSE(read_regular_file(folder.path(), 10));
  CHECK_FALSE(read_regular_file(folder / "missing", 10));
  CHECK(read_regular_file("/dev/zero", 10) == std::nullopt);
  CHECK(read_regular_file(folder / "huge", 5)->content == "begin");
  CHECK(read_regular_file(folder / "huge", 100'000)->content.size() == 100'000);
}
