// What is read of metrics and event logs, whole or damaged.
#include "plot/run_records.h"

#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::plot;

namespace {

RunRecords records_of(const std::string& text) {
  RunRecords run;
  add_records(run, text, "m.jsonl");
  return run;
}

const std::string begin_line =
    R"({"event":"start","model":"resnet18","dataset":"mnist","rank":0,"world_size":2,)"
    R"("total_steps":40,"resumed_from_step":0,"restart_count":0,"time":1000})"
    "\n";

std::string train_line(int step, double loss, double time) {
  return R"({"event":"train","step":)" + std::to_string(step) + R"(,"loss":)" +
         std::to_string(loss) +
         R"(,"prec1_avg":50,"lr":0.1,"images_per_s":100,"step_s":0.5,"data_s":0.1,)"
         R"("exposed_comm_s":0.2,"time":)" +
         std::to_string(time) + "}\n";
}

std::string event_line(const std::string& event, double time_s, const std::string& more = "") {
  return R"({"event":")" + event + R"(","time_unix_us":)" +
         std::to_string(static_cast<long long>(time_s * 1e6)) +
         R"(,"host":"node-1","launcher_pid":7,"attempt":0)" + more + "}\n";
}

}  // namespace

TEST_CASE("curves of a run are what its lines say", "[plot]") {
  const RunRecords run =
      records_of(begin_line + train_line(10, 2.5, 1005) + train_line(20, 1.5, 1010) +
                 R"({"event":"validation","step":20,"loss":1.25,"prec1":60,"time":1011})" + "\n" +
                 R"({"event":"validation","step":20,"prec1":61,"averaged":true,"time":1011})" +
                 "\n" + R"({"event":"end","step":23,"time":1012})" + "\n");

  CHECK(run.steps_done == 23);  // The last lines of a run tell of fewer than all steps.
  CHECK(run.model == "resnet18");
  CHECK(run.workers == 2);
  CHECK(run.train_loss == Curve{{10, 2.5}, {20, 1.5}});
  CHECK(run.validation_loss == Curve{{20, 1.25}});
  CHECK(run.validation_top1 == Curve{{20, 60}});
  CHECK(run.averaged_top1 == Curve{{20, 61}});
  CHECK(run.learning_rate == Curve{{10, 0.1}, {20, 0.1}});
  CHECK(run.ended == "end");
  CHECK(run.last_s - run.began_s == 12);
  CHECK(run.notes.empty());
}

TEST_CASE("steps that were done again count once, and their time twice", "[plot]") {
  const std::string again =
      R"({"event":"start","rank":0,"world_size":2,"resumed_from_step":10,"restart_count":1,)"
      R"("time":1020})"
      "\n";
  const RunRecords run = records_of(begin_line + train_line(10, 3, 1005) + train_line(20, 2, 1010) +
                                    train_line(30, 1, 1015) + again + train_line(20, 2.5, 1025));

  CHECK(run.train_loss == Curve{{10, 3}, {20, 2.5}});
  REQUIRE(run.beginnings.size() == 2);
  CHECK(run.beginnings[1].step == 10);
  CHECK(run.beginnings[1].reached == 30);
  CHECK(run.beginnings[1].restarts == 1);
  CHECK(run.ranks.at(0).steps == 40);
  CHECK(run.ranks.at(0).step_s == Approx(20));
  CHECK(run.ranks.at(0).data_s == Approx(4));
  CHECK(run.ranks.at(0).waiting_s.value() == Approx(8));
  CHECK(run.ended.empty());
}

TEST_CASE("an evaluation in the file of a run takes nothing of it away", "[plot]") {
  const auto validation = [](int step, int top1) {
    return R"({"event":"validation","step":)" + std::to_string(step) + R"(,"prec1":)" +
           std::to_string(top1) + "}\n";
  };
  const std::string evaluation =
      R"({"event":"start","model":"resnet50","rank":0,"world_size":1,"total_steps":0,)"
      R"("resumed_from_step":0,"evaluate":true,"time":1020})"
      "\n";
  const std::string trained = begin_line + train_line(10, 3, 1005) + validation(10, 40) +
                              train_line(20, 2, 1010) + validation(20, 50) +
                              R"({"event":"end","step":20,"time":1012})" + "\n";
  const RunRecords run = records_of(trained + evaluation + validation(10, 41) + validation(15, 45));

  CHECK(run.train_loss == Curve{{10, 3}, {20, 2}});
  CHECK(run.validation_top1 == Curve{{10, 41}, {15, 45}, {20, 50}});
  CHECK(run.beginnings.size() == 1);
  CHECK(run.model == "resnet18");
  CHECK(run.ended == "end");
  CHECK(run.last_s - run.began_s == 12);
  // By itself it is a run as well.
  const RunRecords alone = records_of(evaluation + validation(10, 41));
  CHECK(alone.model == "resnet50");
  CHECK(alone.validation_top1 == Curve{{10, 41}});
}

TEST_CASE("another rank's file adds its times alone", "[plot]") {
  RunRecords run;
  add_records(run, begin_line + train_line(10, 3, 1005), "m_0.jsonl");
  std::string other = begin_line;
  other.replace(other.find("\"rank\":0"), 8, "\"rank\":1");
  CHECK(rank_of_metrics(other) == 1);
  add_records(run, other + train_line(10, 9, 1005), "m_1.jsonl");

  CHECK(run.train_loss == Curve{{10, 3}});
  CHECK(run.beginnings.size() == 1);
  REQUIRE(run.ranks.size() == 2);
  CHECK(run.ranks.at(1).steps == 10);
}

TEST_CASE("a later file without its beginning adds nothing until it says whose it is", "[plot]") {
  RunRecords run;
  add_records(run, begin_line + train_line(10, 1, 1005), "m_0.jsonl");
  std::string again = begin_line;
  again.replace(again.find("\"rank\":0"), 8, "\"rank\":1");
  const std::string cut = train_line(590, 5, 1010).substr(20) + train_line(600, 5, 1015);
  add_records(run, cut, "m_1.jsonl");
  CHECK(run.notes.back() ==
        "m_1.jsonl: its beginning is lost, and 1 line does not say of which rank it is; left out");
  add_records(run, cut + again + train_line(10, 7, 1020), "m_1.jsonl");

  CHECK(run.train_loss == Curve{{10, 1}});
  CHECK(run.images_per_s == Curve{{10, 100}});
  CHECK(run.steps_done == 10);
  CHECK(run.ranks.at(0).steps == 10);
  CHECK(run.ranks.at(1).steps == 10);
  CHECK(run.notes.size() == 4);
}

TEST_CASE("a file that has lost its beginning is rank 0's, or of the rank that it says later",
          "[plot]") {
  const std::string cut =
      begin_line.substr(9) + train_line(590, 9, 1005) + train_line(600, 8, 1010);
  CHECK(rank_of_metrics(cut) == 0);
  const RunRecords run = records_of(cut);
  CHECK(run.train_loss == Curve{{590, 9}, {600, 8}});
  CHECK(run.ranks.at(0).steps == 10);  // Of how many steps the first line tells nobody knows.

  std::string again = begin_line;
  again.replace(again.find("\"rank\":0"), 8, "\"rank\":3");
  CHECK(rank_of_metrics(cut + again) == 3);
  CHECK(records_of(cut + again).train_loss.empty());
  CHECK(rank_of_metrics(R"({"event":"no word of ours"})"
                        "\n" +
                        again) == 3);
  // What is no file of metrics joins the run before it, broken or not.
  CHECK_FALSE(rank_of_metrics("ent\":1}\n" + event_line("attempt_started", 101) + again));
  CHECK_FALSE(rank_of_metrics("no JSON\n"));
}

TEST_CASE("a line that is half there, or none, is left out and said", "[plot]") {
  const std::string text = begin_line + "no JSON\n[1]\n" + train_line(10, 2, 1005) +
                           train_line(20, 1, 1006).substr(0, 30);
  const RunRecords run = records_of(text);

  CHECK(run.train_loss == Curve{{10, 2}});
  REQUIRE(run.notes.size() == 2);
  CHECK(run.notes[0] == "m.jsonl: line 5, the last one, is only half there; left out");
  CHECK(run.notes[1] == "m.jsonl: 2 lines are no JSON object (the first: line 2); left out");
  // One that lacks its end alone is whole.
  std::string whole = begin_line + train_line(10, 2, 1005);
  whole.pop_back();
  CHECK(records_of(whole).notes.empty());
  CHECK(records_of(whole).train_loss.size() == 1);
}

TEST_CASE("what is no number has no place in a curve", "[plot]") {
  // JSON has no NaN: the trainer writes null.
  const RunRecords run = records_of(
      begin_line + R"({"event":"train","step":10,"loss":null,"lr":0.1})" + "\n" +
      R"({"event":"train","step":20,"loss":1e300,"lr":0.1})" + "\n" +
      R"({"event":"train","step":-5,"loss":1})" + "\n" + R"({"event":"train","loss":1})" + "\n" +
      R"({"event":"train","step":"x","loss":"1"})" + "\n");
  CHECK(run.train_loss.empty());
  CHECK(run.learning_rate == Curve{{10, 0.1}, {20, 0.1}});
}

TEST_CASE("a clock that is set while a launcher runs moves none of its attempts", "[plot]") {
  const auto at = [](int elapsed_s) {
    return R"(,"elapsed_us":)" + std::to_string(elapsed_s * 1'000'000);
  };
  for (const double set_by : {-86'400.0, 86'400.0}) {
    const RunRecords run = records_of(
        event_line("launcher_started", 100'000, at(0)) +
        event_line("attempt_started", 100'001, at(1)) +
        event_line("attempt_verdict", 100'005 + set_by, at(5) + R"(,"why":"it failed")") +
        event_line("attempt_ended", 100'006 + set_by, at(6) + R"(,"succeeded":false)") +
        // Another one with that pid, when the clock is right again.
        event_line("launcher_started", 100'050, at(0)) +
        event_line("attempt_started", 100'051, at(1)));

    REQUIRE(run.launchers.size() == 1);
    const LauncherTrack& track = run.launchers[0];
    REQUIRE(track.attempts.size() == 2);
    CHECK(track.attempts[0].began_s == 100'001);
    CHECK(track.attempts[0].ended_s == 100'006);
    CHECK(track.attempts[1].began_s == 100'051);
    REQUIRE(track.happenings.size() == 1);
    CHECK(track.happenings[0].time_s == 100'005);
    CHECK(track.last_s == 100'051);
  }
}

TEST_CASE("an event log tells attempts, and who failed in them", "[plot]") {
  const RunRecords run = records_of(
      event_line("launcher_started", 100) + event_line("attempt_started", 101) +
      event_line("worker_ended", 105,
                 R"(,"rank":3,"exit_code":0,"signal":"SIGKILL","stopped":false)") +
      event_line("worker_ended", 105.5,
                 R"(,"rank":2,"exit_code":0,"signal":"SIGTERM","stopped":true)") +
      event_line("attempt_verdict", 105.25, R"(,"why":"rank 3 was killed","final":false)") +
      event_line("attempt_ended", 106, R"(,"succeeded":false)") +
      event_line("attempt_started", 107) + event_line("worker_started", 108));

  REQUIRE(run.launchers.size() == 1);
  CHECK_FALSE(run.launchers[0].exit_status.has_value());
  CHECK(records_of(event_line("job_ended", 109, R"(,"exit_status":3)")).launchers[0].exit_status ==
        3);
  const LauncherTrack& track = run.launchers[0];
  CHECK(track.host == "node-1");
  REQUIRE(track.attempts.size() == 2);
  CHECK(track.attempts[0].began_s == Approx(101));
  CHECK(track.attempts[0].ended_s == Approx(106));
  CHECK(track.attempts[0].succeeded == false);
  CHECK_FALSE(track.attempts[1].succeeded.has_value());
  CHECK(track.attempts[1].ended_s == Approx(108));
  REQUIRE(track.happenings.size() == 2);
  CHECK(track.happenings[0].what == "rank 3 ended by SIGKILL");
  CHECK(track.happenings[1].what == "rank 3 was killed");
  CHECK(rank_of_metrics(event_line("launcher_started", 100)) == std::nullopt);
}
