// How a report tells of the stacks of thousands of ranks, which are invented here.
#include "launcher/stall/equal_stacks.h"

#include <algorithm>

#include "launcher/stall/rank_names.h"
#include "tests/testing/catch.h"

using namespace ddprun::launcher;

namespace {

using Lines = std::vector<std::string>;

// As node_stack_lines() has it, with numbers that are this process's own.
void add(NodeLines& node, int rank, const std::string& doing, const std::string& place) {
  const std::string pid = std::to_string(4'000 + rank);
  node.lines.push_back("rank " + std::to_string(rank) + " (pid " + pid + "), " + doing);
  node.lines.push_back("    Process " + pid + ": python3 train.py");
  node.lines.push_back("    Thread " + pid + " (idle): \"MainThread\"");
  node.lines.push_back("        " + place);
  node.lines.push_back("    main() [0x7f00" + pid + "]");
}

NodeLines node(int number, const std::string& why = "") {
  return {.host = "host-" + std::to_string(number), .node_rank = number, .lines = {}, .why = why};
}

std::size_t bytes_of(const Lines& lines) {
  std::size_t bytes = 0;
  for (const std::string& line : lines) bytes += line.size() + 1;
  return bytes;
}

}  // namespace

TEST_CASE("17.2: equal stacks are told once, and the one that differs first", "[stall]") {
  std::vector<NodeLines> nodes = {node(0), node(1)};
  for (const int rank : {0, 1}) add(nodes[0], rank, "step 5, all-reduce", "all_reduce (c10d.py:9)");
  add(nodes[1], 2, "step 5, all-reduce", "all_reduce (c10d.py:9)");
  add(nodes[1], 3, "step 5, train", "load_batch (train.py:120)");
  CHECK(equal_stack_lines(nodes) ==
        Lines{"node 0 on host-0: ranks 0-1", "node 1 on host-1: ranks 2-3",
              "rank 3 (pid 4003), step 5, train", "    Process 4003: python3 train.py",
              "    Thread 4003 (idle): \"MainThread\"", "        load_batch (train.py:120)",
              "    main() [0x7f004003]", "ranks 0-2, 3 that stand alike; of them",
              "rank 0 (pid 4000), step 5, all-reduce", "    Process 4000: python3 train.py",
              "    Thread 4000 (idle): \"MainThread\"", "        all_reduce (c10d.py:9)",
              "    main() [0x7f004000]"});
}

TEST_CASE("17.2: another line of the program, step or phase is another place", "[stall]") {
  std::vector<NodeLines> nodes = {node(0)};
  add(nodes[0], 0, "step 5, train", "load (train.py:120)");
  add(nodes[0], 1, "step 5, train", "load (train.py:121)");
  add(nodes[0], 2, "step 6, train", "load (train.py:120)");
  add(nodes[0], 3, "step 5, data", "load (train.py:120)");
  const Lines lines = equal_stack_lines(nodes);
  CHECK(std::count_if(lines.begin(), lines.end(),
                      [](const auto& line) { return line.rfind("rank ", 0) == 0; }) == 4);
}

TEST_CASE("17.2: addresses are any process's own, places in a function are not", "[stall]") {
  const auto blocks = [](const std::vector<std::string>& places) {
    std::vector<NodeLines> nodes;
    for (int rank = static_cast<int>(places.size()); --rank >= 0;) {
      nodes.push_back(node(rank));
      add(nodes.back(), rank, "step 5", places[static_cast<std::size_t>(rank)]);
    }
    Lines lines = equal_stack_lines(nodes);
    std::erase_if(lines, [](const auto& line) { return !line.starts_with("rank"); });
    return lines;
  };
  CHECK(blocks({"0xdeadbeef in read", "0xf9 in read"}) ==
        Lines{"ranks 0-1, 2 that stand alike; of them", "rank 0 (pid 4000), step 5"});
  CHECK(blocks({"at 0x7f0a", "at 0x7"}).size() == 2);
  CHECK(blocks({"read+0x1c", "read+0x1d", "read+0x1c"}) ==
        Lines{"rank 1 (pid 4001), step 5", "ranks 0, 2, 2 that stand alike; of them",
              "rank 0 (pid 4000), step 5"});
  CHECK(blocks({"0x1 in read", "0x1 in write"}) ==
        Lines{"rank 0 (pid 4000), step 5", "rank 1 (pid 4001), step 5"});
}

TEST_CASE("17.2: who has not told, or not all, is named with the reason", "[stall]") {
  std::vector<NodeLines> nodes = {node(0, "it does not answer"), node(1), node(2), node(3)};
  nodes[1].lines = {"  somebody else asks for stacks or logs just now: ask again"};
  nodes[2].lines = {"... 40 lines before", "    the end of a stack", "rank 8 (pid 4): no number"};
  add(nodes[2], 9, "step 5", "load (train.py:120)");
  const Lines lines = equal_stack_lines(nodes);
  REQUIRE(lines.size() > 3);
  CHECK(lines[0] == "node 0 on host-0: it does not answer");
  CHECK(lines[1] == "node 1 on host-1: somebody else asks for stacks or logs just now: ask again");
  CHECK(lines[2] == "node 2 on host-2: ranks 8-9; ... 40 lines before");
  CHECK(equal_stack_lines({}).empty());
}

TEST_CASE("17.2: what a job of thousands of ranks tells fits the limit, and says what does not",
          "[stall]") {
  std::vector<NodeLines> nodes;
  for (int number = 0; number < 512; ++number) {
    nodes.push_back(node(number));
    for (int local = 0; local < 8; ++local) {
      const int rank = 8 * number + local;
      add(nodes.back(), rank, "step 5", "line " + std::to_string(rank));  // No two are alike.
      nodes.back().lines.insert(nodes.back().lines.end(), 200, "        deep recursion");
    }
  }
  const EqualStacksLimits limits;
  const Lines lines = equal_stack_lines(nodes, limits);
  CHECK(bytes_of(lines) < limits.bytes_max + 2'000);
  CHECK(lines.back().find("are left out: more than 128 KiB]") != std::string::npos);
  CHECK(std::find(lines.begin(), lines.end(), "    [... 124 lines more]") != lines.end());

  // The nodes alone may be too many.
  const Lines few = equal_stack_lines(nodes, {.bytes_max = 2'000});
  CHECK(bytes_of(few) < 4'000);
  CHECK(std::any_of(few.begin(), few.end(), [](const auto& line) {
    return line.find(" nodes more]") != std::string::npos;
  }));
}

TEST_CASE("17.2: ranks are named by their neighbours, and not all of very many", "[stall]") {
  CHECK(rank_names({4}) == "rank 4");
  CHECK(rank_names({5, 0, 2, 1}) == "ranks 0-2, 5");
  std::vector<int> odd;
  for (int rank = 1; rank < 10'000; rank += 2) odd.push_back(rank);
  const std::string text = rank_names(odd);
  CHECK(text.size() < 500);
  CHECK(text.find(", ... (5000 in all)") != std::string::npos);
}
