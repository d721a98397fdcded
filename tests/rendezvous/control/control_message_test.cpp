// Control messages: what is written is read back, and nothing a stranger sends does harm.
#include "rendezvous/control/control_message.h"

#include <csignal>
#include <cstring>
#include <random>
#include <string>

#include "rendezvous/control/visible_text.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;

namespace {

template <class T>
T round_trip(const T& message) {
  const ParsedLine parsed = parse_control_message(encode(message));
  INFO(parsed.error);
  REQUIRE(parsed.message);
  REQUIRE(std::holds_alternative<T>(*parsed.message));
  return std::get<T>(*parsed.message);
}

FirstCause segfault() {
  return {.kind = FirstCause::Kind::WorkerFailed,
          .host = "node1",
          .node_rank = 1,
          .rank = 3,
          .local_rank = 1,
          .pid = 4127,
          .signal = 11,
          .core_dumped = true,
          .attempt = 2,
          .ran_ms = 12'345,
          .message = "RuntimeError: \"quoted\"\nsecond line",
          .last_stderr = "line 1\nline 2",
          .oom_killed = true,
          .memory_limit_bytes = 1 << 30,
          .memory_peak_bytes = 1 << 29,
          .core = "/cores/core.4127",
          .log_files = "/logs/1/stdout.log\n/logs/1/stderr.log",
          .advice = "buy more memory",
          .ended_first = "rank 1 (pid 8 on vm) ended with exit code 1 after 3 s",
          .hung_ms = 61'000,
          .age_ms = 2'345,
          .usage_error = true,
          .starter_gone = true,
          .of_a_peer = true,
          .halted = true};
}

std::string error_of(std::string_view line) {
  const ParsedLine parsed = parse_control_message(line);
  CHECK_FALSE(parsed.message);
  return parsed.error;
}

}  // namespace

TEST_CASE("a first cause arrives as it was sent", "[rendezvous][control_message]") {
  const WorkerFailed sent{2, segfault()};

  const WorkerFailed received = round_trip(sent);

  CHECK(received.attempt == 2);
  CHECK(received.cause == sent.cause);
}

TEST_CASE("a first cause from an older agent lacks what that does not know",
          "[rendezvous][control_message]") {
  const ParsedLine parsed = parse_control_message(
      R"({"type":"worker_failed","attempt":1,"term":0,"cause":{"kind":"worker_failed","host":"vm",)"
      R"("node_rank":1,"rank":1,"local_rank":0,"pid":16130,"exit_code":3,"signal":0,)"
      R"("core_dumped":false,"retriable":true,"attempt":1,"ran_ms":1207,"message":"",)"
      R"("last_stderr":"no cheese"}})");

  INFO(parsed.error);
  REQUIRE(parsed.message);
  const FirstCause& cause = std::get<WorkerFailed>(*parsed.message).cause;
  CHECK(cause.last_stderr == "no cheese");
  CHECK_FALSE(cause.oom_killed);
  CHECK(cause.advice == "");
  CHECK_FALSE(cause.usage_error);
  CHECK_FALSE(cause.starter_gone);
  CHECK_FALSE(cause.of_a_peer);
}

TEST_CASE("a hello arrives with and without a node rank", "[rendezvous][control_message]") {
  Hello hello{.run_id = "job", .node_id = "00ff", .host = "a", .nproc = 4, .role = "trainer"};
  CHECK_FALSE(round_trip(hello).node_rank);

  hello.node_rank = 3;
  const Hello received = round_trip(hello);

  CHECK(received.node_rank == 3);
  CHECK(received.run_id == "job");
  CHECK(received.nproc == 4);
  CHECK(received.version == control_protocol_version);
}

TEST_CASE("every message of the coordinator is read back", "[rendezvous][control_message]") {
  CHECK(round_trip(Welcome{1, 1'000, 5'000}).heartbeat_timeout_ms == 5'000);
  CHECK(round_trip(Refused{"another job", 73}).reason == "another job");
  CHECK(round_trip(Waiting{1, 2, "waiting for node 1"}).wanted == 2);
  CHECK(round_trip(Stop{3, 15, "why", true, 139, segfault()}).cause == segfault());
  CHECK_FALSE(round_trip(Stop{3, 15, "why", false, 0, {}}).cause);
  CHECK(round_trip(Finish{0, "done", {}}).exit_status == 0);
  const RoundStart round{.attempt = 1,
                         .group_rank = 1,
                         .group_world_size = 2,
                         .rank_base = 4,
                         .world_size = 8,
                         .role_world_size = 8,
                         .master_addr = "10.0.0.1",
                         .master_port = 29'500};
  CHECK(round_trip(round).rank_base == 4);
  CHECK(encode(round).find(R"("addresses":[])") != std::string::npos);  // Older agents want one.
  CHECK(round_trip(RoundStart{.nproc = 3, .master_port = 1}).nproc == 3);
  CHECK(round_trip(RoundStart{.master_port = 1, .coordinator = "n1"}).coordinator == "n1");
  CHECK_FALSE(round_trip(RoundStart{.master_port = 1}).restarts_used);
  CHECK(round_trip(RoundStart{.master_port = 1, .restarts_used = 2}).restarts_used == 2);
}

TEST_CASE("16.1: what a takeover needs is read back", "[rendezvous][control_message]") {
  const Council council = {{"ab", 0, "host-a", "10.0.0.1", 29'500},
                           {"cd", 1, "host-b", "fe80::1%eth0", 41'000}};
  const Succession succession = round_trip(Succession{.term = 2,
                                                      .round = {1, 3},
                                                      .nodes = 20,
                                                      .restarts_used = 4,
                                                      .failures_in_a_row = 2,
                                                      .progress = 1LL << 40,
                                                      .max_restarts = 6,
                                                      .coordinator = "ab",
                                                      .council = council,
                                                      .before = {council[1]}});
  CHECK(succession.council == council);
  CHECK(succession.before == Council{council[1]});
  CHECK(succession.round == RoundName{1, 3});
  CHECK(succession.nodes == 20);
  CHECK(succession.max_restarts == 6);
  CHECK(succession.failures_in_a_row == 2);
  CHECK(succession.progress == 1LL << 40);
  CHECK_FALSE(round_trip(Succession{}).max_restarts);
  CHECK(round_trip(AskVote{"job", "cd", "ab", 2, 1, 0}).heard_term == 1);
  CHECK(round_trip(AskVote{"job", "cd", "", 0, 0, -1}).attempt == -1);
  CHECK(round_trip(Vote{2, true, council[0]}).coordinator == council[0]);
  CHECK(round_trip(Leads{"job", 2, council[1]}).coordinator == council[1]);
  CHECK(round_trip(Leads{"job", 2, council[1]}).term == 2);
  CHECK(round_trip(Moved{council[0]}).coordinator == council[0]);
  CHECK_FALSE(round_trip(Hello{}).resumes);
  Hello hello;
  hello.resumes = RoundSeat{.term = 1, .attempt = 2, .group_rank = 3, .founder = true};
  CHECK(round_trip(hello).resumes->group_rank == 3);
  CHECK(round_trip(hello).resumes->founder);

  std::string seats = "{}";
  for (std::size_t i = 0; i < council_max; ++i) seats += ",{}";
  CHECK(parse_control_message(R"({"type":"succession","term":0,"attempt":0,"nodes":1,)"
                              R"("restarts_used":0,"coordinator":"a","before":[],"council":[)" +
                              seats + "]}")
            .error.find("at most 15 seats") != std::string::npos);
}

TEST_CASE("16.1: a succession names those that have resigned, if any",
          "[rendezvous][control_message]") {
  const std::vector<std::string> ids = {"ab", "cd"};
  CHECK(round_trip(Succession{.resigned = ids}).resigned == ids);
  const std::string line = encode(Succession{});  // As an older agent writes it.
  CHECK(line.find("resigned") == std::string::npos);
  CHECK(round_trip(Succession{}).resigned.empty());

  const auto error_with = [&](const std::string& value) {
    std::string with = line;
    with.replace(with.rfind('}'), 1, ",\"resigned\":" + value + "}");
    return parse_control_message(with).error;
  };
  CHECK(error_with("[]").empty());
  CHECK(error_with("3").find("a list of at most 30 texts") != std::string::npos);
  CHECK(error_with("[3]").find("must hold texts") != std::string::npos);
  std::string many = "\"a\"";
  for (std::size_t i = 0; i < 2 * council_max; ++i) many += ",\"a\"";
  CHECK(error_with("[" + many + "]").find("a list of at most 30 texts") != std::string::npos);
}

TEST_CASE("16.1: a succession has one round, whatever older agents read it by",
          "[rendezvous][control_message]") {
  const std::string line = encode(Succession{.term = 2, .round = {1, 3}});
  const std::string twice = R"("round_attempt":3)";
  REQUIRE(line.find(R"("attempt":3,"round_term":1)") != std::string::npos);
  REQUIRE(line.find(twice) != std::string::npos);

  std::string another = line;
  another.replace(another.find(twice), twice.size(), R"("round_attempt":7)");
  std::string first_version = line;  // It named neither term nor attempt a second time.
  first_version.replace(first_version.find(R"(,"round_term":1)"), 15, "");
  first_version.replace(first_version.find("," + twice), twice.size() + 1, "");

  const auto round_of = [](const std::string& text) {
    const ParsedLine parsed = parse_control_message(text);
    INFO(parsed.error);
    REQUIRE(parsed.message);
    return std::get<Succession>(*parsed.message).round;
  };
  CHECK(round_of(another) == RoundName{1, 3});
  CHECK(round_of(first_version) == RoundName{0, 3});
}

TEST_CASE("the small messages of agents are read back", "[rendezvous][control_message]") {
  CHECK(round_trip(Started{7}).attempt == 7);
  CHECK(round_trip(WorkersSucceeded{7}).attempt == 7);
  CHECK(round_trip(Reaped{7}).attempt == 7);
  CHECK_FALSE(round_trip(Reaped{7}).cause);
  CHECK(round_trip(Reaped{7, segfault()}).cause == segfault());
  CHECK(round_trip(Reaped{.attempt = 7, .nproc = 3}).nproc == 3);
  CHECK(round_trip(CanGrow{7, 2, 4}).nproc == 4);
  CHECK(round_trip(CanGrow{7, 2, 4}).term == 2);
  CHECK(round_trip(Started{7, 2}).term == 2);
  CHECK(round_trip(WorkersSucceeded{7, 2}).term == 2);
  CHECK(round_trip(WorkerFailed{7, segfault(), 2}).term == 2);
  CHECK(round_trip(Reaped{7, {}, 2}).term == 2);
  CHECK(round_trip(Stop{.attempt = 7, .signal = 15, .term = 2}).term == 2);
  CHECK(round_trip(RoundStart{.attempt = 7, .term = 2, .master_port = 1}).term == 2);
  CHECK(round_trip(Leaving{15}).signal == 15);
  CHECK(round_trip(Leaving{15, "its GPU is lost"}).unfit == "its GPU is lost");
  CHECK_FALSE(round_trip(Leaving{15, "its GPU is lost"}).starter_gone);
  CHECK(round_trip(Leaving{.signal = 1, .starter_gone = true}).starter_gone);
  round_trip(Heartbeat{});
}

TEST_CASE("a bad line is answered with what is wrong", "[rendezvous][control_message]") {
  CHECK(error_of("") == "the line is not a JSON object");
  CHECK(error_of("[1,2]") == "the line is not a JSON object");
  CHECK(error_of("{\"type\":\"hel") == "the line is not a JSON object");
  CHECK(error_of("{}") == "\"type\" is missing");
  CHECK(error_of(R"({"type":7})") == "\"type\" is missing");
  CHECK(error_of(R"({"type":"dance"})") == "unknown \"type\" \"dance\"");
  CHECK(error_of(R"({"type":"reaped"})") == "reaped: \"attempt\" is missing");
  CHECK(error_of(R"({"type":"reaped","attempt":0})") == "reaped: \"term\" is missing");
  CHECK(error_of(R"({"type":"reaped","attempt":-1})").find("from 0 to") != std::string::npos);
  CHECK(error_of(R"({"type":"reaped","attempt":1e3})").find("whole number") != std::string::npos);
  CHECK(error_of(R"({"type":"reaped","attempt":18446744073709551615})").find("whole number") !=
        std::string::npos);
  CHECK(error_of(R"({"type":"leaving","signal":0})").find("from 1 to 64") != std::string::npos);
  CHECK(error_of(R"({"type":"worker_failed","attempt":0,"term":0,"cause":[]})").find("object") !=
        std::string::npos);
}

TEST_CASE("unknown fields are left alone, for versions to come", "[rendezvous][control_message]") {
  CHECK(parse_control_message(R"({"type":"heartbeat","load":0.5})").message);
}

TEST_CASE("a line over the limit is refused without being read", "[rendezvous][control_message]") {
  const std::string line(control_line_bytes_max + 1, ' ');

  CHECK(error_of(line).find("longer than the limit") != std::string::npos);
}

TEST_CASE("the longest texts fit in a line, and output keeps its end",
          "[rendezvous][control_message]") {
  FirstCause cause = segfault();
  cause.message = std::string(1 << 20, '\x01');  // Six bytes each in JSON.
  cause.last_stderr = std::string(1 << 20, '\x02') + "the end";
  cause.host = std::string(4'000, 'h');
  cause.core = cause.log_files = cause.advice = std::string(1 << 20, '\x04');

  const std::string line = encode(Stop{1, 15, std::string(1 << 20, '\x03'), true, 1, cause});

  CHECK(line.size() <= control_line_bytes_max);
  const ParsedLine parsed = parse_control_message(line);
  REQUIRE(parsed.message);
  const auto& output = std::get<Stop>(*parsed.message).cause->last_stderr;
  CHECK(output.substr(output.size() - 7) == "the end");
}

TEST_CASE("bytes that are not UTF-8 become question marks", "[rendezvous][control_message]") {
  Waiting waiting{0, 1, "a\xff\xc3(\xe2\x82\xac\xed\xa0\x80\xf5z"};

  CHECK(round_trip(waiting).text ==
        "a?"
        "?(\xe2\x82\xac????z");
}

TEST_CASE("bytes that are control characters of eight bits are shown where they are no text's",
          "[rendezvous][control_message]") {
  CHECK(visible_text("a\x9b"
                     "2J") == "aM-^[2J");
  CHECK(visible_text("\xc2\x9b\x9b") == "M-^[M-^[");
  CHECK(visible_text("\xc4\x9b\x9b") == "\xc4\x9bM-^[");  // The first is a letter's.
  CHECK(visible_text("\xe2\x80\xae\x85") == "?M-^E");
  CHECK(visible_text("\xe2\x82\xac \xf0\x9f\x98\x80") == "\xe2\x82\xac \xf0\x9f\x98\x80");
  CHECK(visible_text("\xf0z\x9f\xe9\x9f") == "\xf0zM-^_\xe9\x9f");
  CHECK(visible_text("caf\xe9 \xa0") == "caf\xe9 \xa0");  // Latin-1, which steers nothing.
}

TEST_CASE("15.5: no text of a peer can steer a terminal or make up a line of the log",
          "[rendezvous][control_message]") {
  const std::string evil =
      "a\033[2Jb\r\n[ducks] \x9b\x7f\xc2\x9b"
      "c\xe2\x80\xaetxt";
  const std::string shown = "a^[[2Jb^M^J[ducks] ?^?M-^[c?txt";

  const Hello hello =
      round_trip(Hello{.run_id = evil, .host = evil, .address = evil, .role = evil});
  CHECK(hello.host == shown);
  CHECK(hello.address == shown);
  CHECK(hello.role == shown);
  CHECK(round_trip(Waiting{.text = evil}).text == shown);
  CHECK(round_trip(Refused{.reason = evil}).reason == shown);
  CHECK(round_trip(Stop{.signal = 15, .why = evil}).why == shown);
  CHECK(error_of(R"({"type":"\u001b[2J"})") == "unknown \"type\" \"^[[2J\"");

  FirstCause cause = segfault();
  cause.message = "\033[31mKeyError\033[0m\n\tin " + evil;  // Colors mean nothing elsewhere.
  CHECK(round_trip(WorkerFailed{0, cause}).cause.message ==
        "KeyError\n\tin a^[[2Jb^M\n[ducks] ?^?M-^[c?txt");
}

TEST_CASE("15.5: a job's id is compared as it was given", "[rendezvous][control_message]") {
  CHECK(round_trip(Hello{.run_id = "a\tb", .node_id = "x\ny"}).run_id == "a\tb");
}

TEST_CASE("15.6: nobody is a node that no job has", "[rendezvous][control_message]") {
  Hello hello{.run_id = "job", .node_id = "00ff", .node_rank = nodes_limit - 1};
  CHECK(round_trip(hello).node_rank == nodes_limit - 1);
  hello.node_rank = nodes_limit;
  CHECK(error_of(encode(hello)).find("node_rank") != std::string::npos);
}

TEST_CASE("15.5: nobody has more workers than a machine can run", "[rendezvous][control_message]") {
  CHECK(round_trip(Hello{.nproc = 4'096}).nproc == 4'096);
  CHECK(error_of(encode(Hello{.nproc = 4'097})).find("from 1 to 4096") != std::string::npos);
}

TEST_CASE("mutated lines never throw", "[rendezvous][control_message][fuzz]") {
  std::mt19937 random(20'26);
  const std::string good = encode(Stop{3, 15, "why", true, 139, segfault()});
  int accepted = 0;

  for (int i = 0; i < 20'000; ++i) {
    std::string line = good;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int edit = 0; edit < edits; ++edit) {
      const std::size_t at = random() % line.size();
      switch (random() % 3) {
        case 0:
          line[at] = static_cast<char>(random());
          break;
        case 1:
          line.erase(at, 1 + random() % 8);
          break;
        default:
          line.insert(at, 1 + random() % 3, "{}[]\",:0-e\\"[random() % 11]);
          break;
      }
      if (line.empty()) line.push_back('{');
    }
    const ParsedLine parsed = parse_control_message(line);
    if (parsed.message) ++accepted;
    CHECK(parsed.message.has_value() == parsed.error.empty());
  }

  CHECK(accepted > 0);
}

TEST_CASE("deep nesting is an error, not a stack overflow", "[rendezvous][control_message][fuzz]") {
  CHECK_FALSE(parse_control_message(std::string(60'000, '[')).message);
  CHECK_FALSE(parse_control_message(std::string(30'000, '[') + std::string(30'000, ']')).message);
}

TEST_CASE("signals have the names that the C library gives them", "[rendezvous][control_message]") {
  for (int signal = -1; signal < SIGRTMAX + 1; ++signal) {
    const char* name = ::sigabbrev_np(signal);
    const std::string expected = "signal " + std::to_string(signal);
    CHECK(signal_name(signal) == (name == nullptr ? expected : "SIG" + std::string(name)));
  }
}

TEST_CASE("17.2: a question and its answer arrive as they were sent",
          "[rendezvous][control_message]") {
  const Query query =
      round_trip(Query{.number = 7, .run_id = "job", .what = "logs", .rank = 3, .lines = 20});
  CHECK(query.number == 7);
  CHECK(query.run_id == "job");
  CHECK(query.what == "logs");
  CHECK(query.rank == 3);
  CHECK(query.lines == 20);
  CHECK(round_trip(Query{}).rank == -1);
  const Told told = round_trip(Told{.number = 7, .text = "{\"a\": \"\033\"}", .more = true});
  CHECK(told.number == 7);
  CHECK(told.text == "{\"a\": \"\033\"}");
  CHECK(told.more);
  CHECK(error_of(R"({"type":"query","number":-1,"run_id":"","what":"","rank":0,"lines":0})") != "");
  CHECK(error_of(R"({"type":"query","number":1,"run_id":"","what":"x"})") != "");
  CHECK(error_of(R"({"type":"told","number":1,"text":3,"more":false})") != "");
  CHECK(error_of(R"({"type":"told","number":1,"more":false,"text":")" +
                 std::string(told_piece_bytes_max + 1, 'x') + "\"}") != "");

  // An older agent does not say it, and is not asked.
  Hello hello;
  hello.tells = true;
  CHECK(round_trip(hello).tells);
}

TEST_CASE("17.2: an answer is cut into pieces, none of them in the middle of a character",
          "[rendezvous][control_message]") {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, told_piece_bytes_max - 1, told_piece_bytes_max,
        told_piece_bytes_max + 1, 3 * told_piece_bytes_max}) {
    for (const std::string character : {"x", "\"", "\u00fc", "\u20ac", "\U0001f600"}) {
      std::string text;
      while (text.size() < size) text += character;
      std::string together;
      const auto pieces = told_pieces(5, text);
      REQUIRE_FALSE(pieces.empty());
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Told piece = round_trip(pieces[i]);
        CHECK(piece.number == 5);
        CHECK(piece.more == (i + 1 < pieces.size()));
        together += piece.text;
      }
      CHECK(together == text);
    }
  }
}
