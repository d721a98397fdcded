// The messages by which a process gets its rank, and is told that an attempt is over.
#include "rendezvous/contract/spare_channel.h"

#include "tests/testing/catch.h"
#include "tests/testing/spaced_numbers.h"

using namespace ddprun::rendezvous;

TEST_CASE("an environment comes whole and in order, or not yet", "[rendezvous][spares]") {
  const Environment environment = {
      {"RANK", "3"}, {"EMPTY", ""}, {"LINES", "a\nb=c"}, {"RANK", "4"}};
  const std::string message = rank_message(environment);
  CHECK(read_rank_message(message) == environment);
  for (std::size_t bytes = 0; bytes < message.size(); ++bytes) {
    INFO(bytes);
    CHECK_FALSE(read_rank_message(std::string_view(message).substr(0, bytes)));
  }
  CHECK(read_rank_message(rank_message({})) == Environment{});
}

TEST_CASE("what is no variable is left out of an environment", "[rendezvous][spares]") {
  using namespace std::string_literals;
  CHECK(read_rank_message("word\0=value\0A=1\0\0"s) == Environment{{"A", "1"}});
}

TEST_CASE("messages are taken one by one, however they are cut", "[rendezvous][spares]") {
  const Environment rank = {{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  const std::string both = attempt_over_message("rank 0 was killed") + rank_message(rank);
  for (std::size_t cut = 0; cut <= both.size(); ++cut) {
    INFO(cut);
    std::string received = both.substr(0, cut);
    std::vector<Environment> messages;
    while (auto message = take_message(received)) messages.push_back(*message);
    received += both.substr(cut);
    while (auto message = take_message(received)) messages.push_back(*message);
    REQUIRE(messages.size() == 2);
    CHECK(attempt_over(messages[0]) == "rank 0 was killed");
    CHECK_FALSE(attempt_over(messages[1]));
    CHECK(messages[1] == rank);
    CHECK(received.empty());
  }
}

TEST_CASE("an attempt that is over for no told reason is over", "[rendezvous][spares]") {
  std::string received = attempt_over_message("");
  const auto message = take_message(received);
  REQUIRE(message);
  CHECK(attempt_over(*message) == "");
}

TEST_CASE("death marks survive the way through the environment", "[rendezvous][spares]") {
  const auto marks = read_death_marks(death_marks_text({7, {{0, 1}, {65'535, 2}}}));
  REQUIRE(marks);
  CHECK(marks->id == 7);
  REQUIRE(marks->marks.size() == 2);
  CHECK(marks->marks[1].semaphore == 65'535);
  CHECK(marks->marks[1].value == 2);
  CHECK(read_death_marks("7")->marks.empty());
  for (const char* wrong : {"", "x", "-1 0:1", "7 0", "7 0:", "7 0:1 x", "7 0-1", "7 70000:1"}) {
    INFO(wrong);
    CHECK_FALSE(read_death_marks(wrong));
  }
}

TEST_CASE("death marks are read in a program whose locale has spaces in numbers",
          "[rendezvous][spares]") {
  const ddprun::testing::SpacedNumbers locale;
  const auto marks = read_death_marks("7 123:1 456:2");
  REQUIRE(marks);
  CHECK(marks->id == 7);
  CHECK(marks->marks.size() == 2);
}
