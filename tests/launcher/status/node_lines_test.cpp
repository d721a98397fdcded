// Stacks and logs of all nodes on their way to somebody's terminal.
#include "launcher/status/node_lines.h"

#include <fstream>

#include "launcher/status/log_ends.h"
#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::launcher;
using Lines = std::vector<std::string>;

TEST_CASE("17.2: lines of all nodes come as they were, but for what a terminal would obey",
          "[watch]") {
  const auto lines = parse_lines(lines_to_json({"a", "b\033[2Jc\r\n", "\xff"}, 1'000));
  REQUIRE(lines);
  CHECK(*lines == Lines{"a", "b^[[2Jc^M^J", "?"});

  const std::string text =
      nodes_to_json({{.host = "h\n1", .node_rank = 0, .lines = {"x"}, .why = ""},
                     {.host = "h2", .node_rank = 1, .lines = {}, .why = "it\033"},
                     {.host = "h3", .node_rank = 2, .lines = {}, .why = ""}},
                    10'000);
  CHECK(text.find('\n') == text.npos);
  const auto nodes = parse_nodes(text);
  REQUIRE(nodes);
  CHECK(nodes_text(*nodes) == Lines{"node 0 on h^J1", "x", "node 1 on h2: it^["});
}

TEST_CASE("17.2: of too many lines the last ones are kept, within the bound", "[watch]") {
  Lines many;
  for (int i = 0; i < 1'000; ++i) many.push_back("line \"" + std::to_string(i) + "\"");
  const std::string text = lines_to_json(many, 2'000);
  CHECK(text.size() <= 2'000);
  const auto lines = parse_lines(text);
  REQUIRE(lines);
  CHECK(lines->back() == "line \"999\"");
  CHECK(lines->front().find("lines before") != std::string::npos);
  CHECK(lines->size() > 50);

  const std::string all =
      nodes_to_json({{.host = "a", .lines = many}, {.host = "b", .lines = many}}, 4'000);
  CHECK(all.size() <= 4'000);
  REQUIRE(parse_nodes(all));
  CHECK(parse_nodes(all)->at(1).lines.back() == "line \"999\"");
  CHECK(parse_lines(lines_to_json(many, 0))->size() == 1);
}

TEST_CASE("17.2: anything else that a peer sends in their place is nothing", "[watch]") {
  for (const char* text : {"", "{", "[]", "1", "{}", "{\"lines\"", "null"}) {
    CHECK_FALSE(parse_lines(text));
    CHECK_FALSE(parse_nodes(text));
  }
  CHECK(parse_lines("{\"lines\": 3}")->empty());
  CHECK(parse_lines("{\"lines\": [1, \"a\", null]}") == Lines{"a"});
  CHECK_FALSE(parse_nodes("{\"nodes\": 3}"));
  const auto nodes = parse_nodes("{\"nodes\": [1, {}, {\"host\": 3, \"node_rank\": 99999999999}]}");
  REQUIRE(nodes);
  CHECK(nodes->size() == 2);
  CHECK(nodes->at(1).node_rank == 1'000'000);
  CHECK(nodes_text(*nodes).empty());
}

TEST_CASE("17.2: the ends of a node's logs, each line with its rank", "[watch]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string file = folder / "0.log";
  std::ofstream(file) << "one\ntwo\nthree";
  const JobSnapshot own{.ranks = {{.rank = 4, .stdout_file = file},
                                  {.rank = 5},
                                  {.rank = 6, .stderr_file = folder / "none"}}};
  CHECK(log_lines(own, 4, 2) == Lines{"[4]: two", "[4]: three"});
  CHECK(log_lines(own, 4, 0) == Lines{"[4]: one", "[4]: two", "[4]: three"});
  CHECK(log_lines(own, 4, 9).size() == 3);
  CHECK(log_lines(own, 7, 0).empty());
  const Lines all = log_lines(own, std::nullopt, 1);
  REQUIRE(all.size() == 3);
  CHECK(all[0] == "[4]: three");
  CHECK(all[1].find("rank 5 writes no log files") != std::string::npos);
  CHECK(all[2].find("none cannot be read") != std::string::npos);

  std::ofstream(file) << std::string(1'000'000, 'x') << "\nlast";
  const Lines end = log_lines(own, 4, 0);
  REQUIRE(end.size() == 2);
  CHECK(end[0].find("the rest of " + file) != std::string::npos);
  CHECK(end[1] == "[4]: last");
}

TEST_CASE("17.2: of a progress bar the last state is told, however long it is drawn", "[watch]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string file = folder / "0.log";
  const JobSnapshot own{.ranks = {{.rank = 4, .stderr_file = file}}};
  std::string bar;
  for (int i = 0; i < 20'000; ++i) bar += "\rstep " + std::to_string(i) + " of 20000";

  std::ofstream(file) << "begin\n" << bar;
  Lines told = log_lines(own, 4, 20);
  REQUIRE(told.size() == 2);
  CHECK(told[0].find("the rest of " + file) != std::string::npos);
  CHECK(told[1] == "[4]: step 19999 of 20000");

  std::ofstream(file) << "begin\r\n" << bar << "\r\nend\r\n";
  CHECK(log_lines(own, 4, 2) == Lines{"[4]: step 19999 of 20000", "[4]: end"});

  std::ofstream(file) << "begin\n" << std::string(1'000'000, 'x') << "the end of it";
  told = log_lines(own, 4, 20);
  REQUIRE(told.size() == 2);
  CHECK(told[1].ends_with("the end of it"));
}
