// The message by which a spare gets its rank.
#include "rendezvous/spare_channel.h"

#include "tests/testing/catch.h"

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
