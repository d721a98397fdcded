// The page of a job while it runs: what is remembered for its curves, what is shown, and to whom.
#include "launcher/export/status_page.h"

#include "launcher/export/http_reply.h"
#include "launcher/export/job_history.h"
#include "tests/launcher/status/full_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::plot::Curve;
using ddprun::plot::RunRecords;
using namespace ddprun::testing;

namespace {

JobSnapshot at_step(std::int64_t step, double loss, int attempt = 2) {
  JobSnapshot job = full_job();
  job.attempt = attempt;
  job.attempts = attempt + 1;
  job.ranks[0].progress->step = step;
  job.ranks[0].progress->loss = loss;
  return job;
}

const PageLookup one_page = [](const std::string& path) -> std::optional<HttpPage> {
  if (path != "/metrics") return std::nullopt;
  return HttpPage{"text/plain", "numbers\n"};
};

}  // namespace

TEST_CASE("17.2: a history is the curves of what was seen", "[launcher][export]") {
  JobHistory history;
  history.add(at_step(10, 3), 1'700'000'200);
  history.add(at_step(20, 2), 1'700'000'202);
  history.add(at_step(20, 2), 1'700'000'204);  // Nothing new.

  const RunRecords& seen = history.records();
  CHECK(seen.train_loss == Curve{{10, 3}, {20, 2}});
  CHECK(seen.images_per_s == Curve{{10, 512.5}, {20, 512.5}});
  REQUIRE(seen.ranks.size() == 1);
  CHECK(seen.ranks.at(8).data_s == 0.025);
  REQUIRE(seen.launchers.size() == 1);
  REQUIRE(seen.launchers[0].attempts.size() == 1);
  CHECK_FALSE(seen.launchers[0].attempts[0].succeeded.has_value());
  // Of four failures the snapshot knows the last one; it is not told again.
  REQUIRE(seen.launchers[0].happenings.size() == 1);
  CHECK(seen.launchers[0].happenings[0].what ==
        "attempt 1: rank 9 was killed by SIGKILL: <b>out of memory</b>");
}

TEST_CASE("a failure that the clock, set meanwhile, puts elsewhere was just now",
          "[launcher][export]") {
  for (const std::int64_t set_by : {-86'400, 0, 86'400}) {
    JobSnapshot job = at_step(10, 3);
    job.started_unix_s = 1'700'000'000;
    job.failures.back().time_unix_s = 1'700'000'090 + set_by;
    JobHistory history;
    history.add(job, 1'700'000'100);
    REQUIRE(history.records().launchers[0].happenings.size() == 1);
    CHECK(history.records().launchers[0].happenings[0].time_s ==
          1'700'000'000 + (set_by == 0 ? 90 : 100));
  }
}

TEST_CASE("what a rank that has ended said last is no point of a curve", "[launcher][export]") {
  JobHistory history;
  history.add(at_step(10, 3), 1'700'000'200);
  JobSnapshot ended = at_step(20, 2);
  for (RankSnapshot& rank : ended.ranks) rank.state = RankState::Failed;
  history.add(ended, 1'700'000'202);
  CHECK(history.records().images_per_s == Curve{{10, 512.5}});
  CHECK(history.records().ranks.empty());
}

TEST_CASE("17.2: a new attempt ends the one before, and its curves begin where it does",
          "[launcher][export]") {
  JobHistory history;
  history.add(at_step(10, 3, 0), 100);
  history.add(at_step(30, 1, 0), 110);
  JobSnapshot again = at_step(20, 2, 1);
  again.since_s = 2;
  again.failures_total = 5;
  history.add(again, 120);
  again.state = NodeState::Succeeded;
  history.add(again, 130);

  const RunRecords& seen = history.records();
  CHECK(seen.train_loss == Curve{{10, 3}, {20, 2}});
  REQUIRE(seen.beginnings.size() == 2);
  CHECK(seen.beginnings[1].step == 20);
  CHECK(seen.beginnings[1].reached == 30);
  const auto& attempts = seen.launchers[0].attempts;
  REQUIRE(attempts.size() == 2);
  CHECK(attempts[0].succeeded == false);
  CHECK(attempts[0].ended_s == 110);
  CHECK(attempts[1].began_s == 118);
  CHECK(attempts[1].succeeded == true);
  CHECK(seen.launchers[0].happenings.size() == 2);
}

TEST_CASE("17.2: a history of a month is as long as one of a day", "[launcher][export]") {
  JobHistory history;
  for (int i = 0; i < 100'000; ++i) history.add(at_step(i, 1.0 / (i + 1)), i);
  const Curve& curve = history.records().train_loss;
  CHECK(curve.size() < 5'000);
  CHECK(curve.front().at == 0);
  CHECK(curve.back().at == 99'999);
}

TEST_CASE("a history of thousands of restarts is bounded, too", "[launcher][export]") {
  JobHistory history;
  for (int attempt = 0; attempt < 3'000; ++attempt) {
    JobSnapshot job = at_step(attempt + 1, 1, attempt);
    job.failures_total = attempt;
    history.add(job, attempt);
  }
  const RunRecords& seen = history.records();
  CHECK(seen.beginnings.size() <= 1'000);
  CHECK(seen.launchers[0].attempts.size() <= 1'000);
  CHECK(seen.launchers[0].happenings.size() <= 200);
}

TEST_CASE("17.2: the page shows each rank, and words of others as text", "[launcher][export]") {
  JobHistory history;
  JobSnapshot job = at_step(41, 0.25);
  history.add(at_step(40, 0.5), 100);
  history.add(job, 102);

  const std::string content = status_content(job, history.records());

  CHECK(contains(content, "./train on node1: running, attempt 2, node 1 of 2, ranks 8 to 9 of 10"));
  CHECK(
      contains(content, "<td>8</td><td>node1</td><td>4127</td><td>running</td><td>41 of 900</td>"));
  CHECK(contains(content, "<td>512.5</td><td>125 ms</td><td>25 ms</td><td>37.5 ms</td>"));
  CHECK(contains(content, "<td>9</td><td>node1</td><td>4128</td><td>failed, signal 9</td>"));
  CHECK(contains(content, "<td>7</td><td>node0</td><td>100</td><td>running</td>"));
  job.others[0].silent_s = 40;
  CHECK(contains(status_content(job, history.records()), "<td>node0, silent for 40 s</td>"));
  job.others[0].ranks.clear();
  CHECK(contains(status_content(job, history.records()),
                 "node on node0, silent for 40 s: nothing is known of its ranks"));
  CHECK(contains(content, "rank 8: data 20.0 %"));
  CHECK(contains(content, "points=\""));
  CHECK(contains(content, "&lt;b&gt;out of memory"));
  CHECK_FALSE(contains(content, "<b>out"));
  CHECK_FALSE(contains(status_page(job), "://"));
}

TEST_CASE("17.2: whoever asks gets a page, or why there is none", "[launcher][export]") {
  const auto reply = [](const std::string& request) { return http_reply(request, true, one_page); };
  const std::string given = reply("GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:9400\r\n\r\n");
  CHECK(given.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(contains(given, "Content-Length: 8\r\n"));
  CHECK(given.ends_with("\r\n\r\nnumbers\n"));
  CHECK(reply("HEAD /metrics HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
  CHECK(reply("GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").starts_with("HTTP/1.1 200"));
  CHECK(reply("GET /metrics HTTP/1.1\r\nHost: [::1]:9400\r\n\r\n").starts_with("HTTP/1.1 200"));
  CHECK(reply("GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
  CHECK(reply("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
  for (const char* bad : {"", "GET", "GET /", "\r\n\r\n", "GET / SMTP\r\n\r\n", "{\"a\": 1}"}) {
    INFO(bad);
    CHECK(reply(bad).starts_with("HTTP/1.1 400"));
  }
}

TEST_CASE("17.2: a name that somebody gave to this address does not get a page",
          "[launcher][export]") {
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: evil.example:9400\r\n\r\n";
  CHECK(http_reply(request, true, one_page).starts_with("HTTP/1.1 403"));
  // Where the user gave an address of the network, hosts have names.
  CHECK(http_reply(request, false, one_page).starts_with("HTTP/1.1 200"));
}
