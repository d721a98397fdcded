// The words of status, top, logs and stacks.
#include "launcher/watch/watch_command.h"

#include "launcher/options/launch_options.h"
#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using Kind = WatchCommand::Kind;
using namespace std::chrono_literals;

namespace {

struct Refusal {
  int status = 0;
  std::string text;
};

Refusal refusal(const std::vector<std::string>& words) {
  try {
    parse_watch_command(words);
  } catch (const UsageExit& exit) {
    return {exit.status(), exit.what()};
  }
  return {-1, "nothing was refused"};
}

}  // namespace

TEST_CASE("17.2: only the four words are commands, and each takes its own options", "[watch]") {
  CHECK(is_watch_command("status"));
  CHECK(is_watch_command("top"));
  CHECK(is_watch_command("logs"));
  CHECK(is_watch_command("stacks"));
  for (const char* word : {"train", "./status", "statu", "", "--status", "Status", "log"}) {
    CHECK_FALSE(is_watch_command(word));
  }
  CHECK(parse_watch_command({"status"}).kind == Kind::Status);
  CHECK(parse_watch_command({"status"}).job.empty());
  CHECK(parse_watch_command({"status", "--json", "night"}).json);
  CHECK(parse_watch_command({"status", "night", "--json"}).job == "night");
  CHECK(parse_watch_command({"top", "-i", "0.5"}).interval == 500ms);
  CHECK(parse_watch_command({"top", "--interval=2"}).interval == 2s);
  CHECK(parse_watch_command({"top"}).interval == 1s);
  const auto logs = parse_watch_command({"logs", "-f", "--rank=3", "-n5", "--", "-job"});
  CHECK(logs.follow);
  CHECK(logs.rank == 3);
  CHECK(logs.lines == 5);
  CHECK(logs.job == "-job");
  CHECK_FALSE(parse_watch_command({"logs"}).lines);
  CHECK(parse_watch_command({"stacks", "--rank", "0"}).rank == 0);
}

TEST_CASE("17.2: what these commands do not understand is told with status 2, help with 0",
          "[watch]") {
  const auto unknown = refusal({"status", "--follow"});
  CHECK(unknown.status == 2);
  CHECK(unknown.text ==
        "ddprun status: error: unknown option --follow\nddprun status -h shows the options.");
  CHECK(refusal({"status", "a", "b"}).status == 2);
  CHECK(refusal({"status", ""}).status == 2);
  CHECK(refusal({"status", "--json=1"}).status == 2);
  for (const char* rank : {"x", "-1", "", "1.5", "99999999999"}) {
    CHECK(refusal({"logs", "--rank", rank}).status == 2);
  }
  CHECK(refusal({"logs", "--rank"}).text.find("nothing follows") != std::string::npos);
  for (const char* seconds : {"0", "-1", "nan", "1e9", "soon"}) {
    CHECK(refusal({"top", "--interval", seconds}).status == 2);
  }
  CHECK(refusal({"status", "--secret-file", "a"}).text.find("for --endpoint") != std::string::npos);
  CHECK(refusal({"status", "--auth", "maybe", "--endpoint", "a"}).status == 2);
  CHECK(refusal({"logs", "-f", "--endpoint", "a"}).status == 2);
  for (const char* place : {"", "a b", "node0:", "node0:x", "node0:70000", "[node0]:1", "-x"}) {
    CHECK(refusal({"status", "--endpoint", place}).status == 2);
  }
  for (const WatchCommandRow& row : watch_table()) {
    for (const char* help : {"-h", "--help"}) {
      const auto told = refusal({row.name, help});
      CHECK(told.status == 0);
      CHECK(told.text.find("ddprun -- " + std::string(row.name)) != std::string::npos);
      CHECK(told.text.back() != '\n');
      for (const char* status : {"0;", "1: ", "2: ", "70: ", "73: "}) {
        CHECK(told.text.find(status, told.text.find("Exit status: ")) != std::string::npos);
      }
      for (std::size_t at = 0, end; at < told.text.size(); at = end + 1) {
        end = std::min(told.text.find('\n', at), told.text.size());
        CHECK(end - at <= 80);
      }
      for (const WatchOptionRow& option : row.options) {
        CHECK(told.text.find("--" + std::string(option.name)) != std::string::npos);
      }
    }
  }
}

TEST_CASE("17.2: a job on other hosts is named by where its nodes meet", "[watch]") {
  CHECK(parse_watch_command({"status"}).endpoint_host.empty());
  const auto status = parse_watch_command({"status", "--endpoint", "node0", "night"});
  CHECK(status.endpoint_host == "node0");
  CHECK(status.endpoint_port == 29'500);
  CHECK(status.job == "night");
  const auto top = parse_watch_command(
      {"top", "--endpoint=[::1]:4000", "--secret-file", "/s", "--auth", "secret"});
  CHECK(top.endpoint_host == "::1");
  CHECK(top.endpoint_port == 4'000);
  CHECK(top.secret_file == "/s");
  CHECK(top.auth == "secret");
  CHECK(parse_watch_command({"logs", "--endpoint", "a:1", "--rank", "3"}).endpoint_port == 1);
  CHECK(parse_watch_command({"stacks", "--endpoint", "a:1"}).endpoint_host == "a");
}
