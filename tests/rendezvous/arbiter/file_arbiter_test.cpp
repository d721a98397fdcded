// The arbiter on a real file system: two nodes are two objects on one path.
#include "rendezvous/arbiter/file_arbiter.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/arbiter/claim_text.h"
#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::rendezvous;
using ddprun::testing::contains;
using ddprun::testing::message_of;
using ddprun::testing::TemporaryFolder;

namespace {

const RoundName round_3{0, 3};

Claim claim_of(const std::string& id, int term = 1, bool kept = false) {
  return {.holder = {.node_id = id, .host = "host-" + id, .address = "10.0.0.1", .port = 29'500},
          .term = term,
          .kept = kept};
}

}  // namespace

TEST_CASE("16.1: a claim's number is given away once, and its text says whose it is",
          "[rendezvous][arbiter]") {
  const TemporaryFolder folder;
  FileArbiter a(folder / "tie", "run"), b(folder / "tie", "run");
  a.found("job");
  CHECK(b.knows("job"));
  CHECK(a.carry_out("job", "a", {.round = round_3, .add = {}, .at = 0, .beat = {}}).count == 0);

  Claims seen =
      a.carry_out("job", "a", {.round = round_3, .add = claim_of("a"), .at = 0, .beat = 7});
  CHECK(seen.count == 1);
  CHECK(seen.last.holder == claim_of("a").holder);
  CHECK(seen.beat == 7);
  seen = b.carry_out("job", "b", {.round = round_3, .add = claim_of("b"), .at = 0, .beat = 1});
  CHECK(seen.count == 1);
  CHECK(seen.last.holder.node_id == "a");
  CHECK(seen.beat == 7);
  seen = b.carry_out("job", "b",
                     {.round = round_3, .add = claim_of("b", 2, true), .at = 1, .beat = 2});
  CHECK(seen.count == 2);
  CHECK(seen.last.kept);
  CHECK(seen.last.term == 2);
  // Another round has a list of its own.
  CHECK(b.carry_out("job", "b", {.round = {0, 4}, .add = {}, .at = 0, .beat = {}}).count == 0);

  std::ifstream file(folder / "tie.job.0-3.0");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK(contains(text, R"("run_id":"run")"));
  CHECK(contains(text, R"("host":"host-a")"));
}

TEST_CASE("16.1: of many who claim at once one has it", "[rendezvous][arbiter]") {
  const TemporaryFolder folder;
  FileArbiter founder(folder / "tie", "run");
  founder.found("job");
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<std::string> winners(4);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        FileArbiter arbiter(folder / "tie", "run");
        const std::string id(1, static_cast<char>('a' + i));
        const ArbiterTask task{.round = {0, turn}, .add = claim_of(id), .at = 0, .beat = {}};
        winners[static_cast<std::size_t>(i)] =
            arbiter.carry_out("job", id, task).last.holder.node_id;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& winner : winners) CHECK(winner == winners[0]);
  }
}

TEST_CASE("16.1: a job that was forgotten leaves nothing, and cannot be claimed again",
          "[rendezvous][arbiter]") {
  const TemporaryFolder folder;
  FileArbiter a(folder / "tie", "run"), asleep(folder / "tie", "run");
  a.found("earlier");
  a.found("job");
  a.carry_out("job", "a", {.round = round_3, .add = claim_of("a"), .at = 0, .beat = 1});
  a.forget("job");
  CHECK_FALSE(asleep.knows("job"));
  CHECK(asleep.knows("earlier"));  // Another job's are not ours to remove.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  const std::string why = message_of<ArbiterError>([&] {
    asleep.carry_out("job", "b", {.round = round_3, .add = claim_of("b"), .at = 0, .beat = {}});
  });
  CHECK(contains(why, "cannot find " + folder.path() + "/tie.job"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("16.1: claims of an earlier job of the same run id are not this one's",
          "[rendezvous][arbiter]") {
  const TemporaryFolder folder;
  FileArbiter a(folder / "tie", "run");
  a.found("earlier");
  a.carry_out("earlier", "x",
              {.round = round_3, .add = claim_of("x", 1, true), .at = 0, .beat = {}});
  a.found("job");
  CHECK(a.carry_out("job", "a", {.round = round_3, .add = {}, .at = 0, .beat = {}}).count == 0);
}

TEST_CASE("16.1: what stands in the way is said, with the file and what to do",
          "[rendezvous][arbiter]") {
  const TemporaryFolder folder;
  SECTION("no folder") {
    FileArbiter arbiter(folder / "none/tie", "run");
    const std::string why = message_of<ArbiterError>([&] { arbiter.found("job"); });
    CHECK(contains(why, "--tie-breaker " + folder.path() + "/none/tie"));
    CHECK(contains(why, "No such file or directory"));
    CHECK(contains(why, "that all nodes share"));
  }
  SECTION("a full disk") {
    if (::access("/dev/full", W_OK) != 0) DDPRUN_SKIP("no /dev/full");
    FileArbiter arbiter(folder / "tie", "run");
    arbiter.found("job");
    std::filesystem::create_symlink("/dev/full", folder / "tie.job.beat-a");
    const std::string why = message_of<ArbiterError>(
        [&] { arbiter.carry_out("job", "a", {.round = round_3, .add = {}, .at = 0, .beat = 1}); });
    CHECK(contains(why, "No space left on device"));
    CHECK(contains(why, "make room there"));
  }
  SECTION("somebody else's file in a claim's place") {
    FileArbiter arbiter(folder / "tie", "run");
    arbiter.found("job");
    std::ofstream(folder / "tie.job.0-3.0") << "not ours\n";
    const std::string why = message_of<ArbiterError>(
        [&] { arbiter.carry_out("job", "a", {.round = round_3, .add = {}, .at = 0, .beat = {}}); });
    CHECK(contains(why, "cannot understand " + folder.path() + "/tie.job.0-3.0"));
  }
}

TEST_CASE("16.1: a claim is read as it was written, and nothing else is one",
          "[rendezvous][arbiter]") {
  const Claim claim = claim_of("a", 1'002, true);
  const std::string text = claim_text(claim, "run", "job", round_3, "now");
  const auto read = parse_claim(text);
  REQUIRE(read);
  CHECK(read->holder == claim.holder);
  CHECK(read->term == 1'002);
  CHECK(read->kept);
  for (std::size_t length = 0; length + 2 < text.size(); ++length) {
    CHECK_FALSE(parse_claim(text.substr(0, length)));
  }
  // Whoever may write there may have written it.
  const auto with = [](const std::string& field, const std::string& value) {
    const std::map<std::string, std::string> sound = {{"node_id", R"("a")"}, {"host", R"("")"},
                                                      {"address", R"("")"},  {"port", "0"},
                                                      {"term", "0"},         {"kept", "false"}};
    std::string object;
    for (const auto& [name, own] : sound) {
      const std::string& said = name == field ? value : own;
      if (!said.empty()) object += (object.empty() ? "{\"" : ",\"") + name + "\":" + said;
    }
    return parse_claim(object + "}");
  };
  CHECK(with("", ""));
  CHECK(with("port", "65535"));
  CHECK(with("term", "1000000000"));
  for (const char* field : {"node_id", "host", "address", "port", "term", "kept"}) {
    INFO(field);
    for (const char* none : {"", "null", "[]", "0.5"}) CHECK_FALSE(with(field, none));
  }
  CHECK_FALSE(with("port", "65536"));
  CHECK_FALSE(with("term", "1000000001"));
  CHECK(claim_time(0) == "1970-01-01T00:00:00Z");
  CHECK_FALSE(parse_claim("[]"));
  CHECK_FALSE(
      parse_claim(R"({"node_id":"","host":"","address":"","port":1,"term":0,"kept":false})"));
  CHECK_FALSE(
      parse_claim(R"({"node_id":"a","host":"","address":"","port":-1,"term":0,"kept":false})"));
}
