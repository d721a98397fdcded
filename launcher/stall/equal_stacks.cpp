// A stack begins with its headline, "rank 3 (pid 4127), step 12, backward", and its lines are
// indented. Anything else that a node says is its word on why there is nothing, or not all.
#include "launcher/stall/equal_stacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "launcher/stall/rank_names.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t share_of_nodes = 4;  // Of all bytes, for the lines of nodes.
constexpr std::size_t word_bytes_max = 200;

struct Stack {
  int rank = -1;
  std::string headline;
  std::vector<std::string> lines;
};

struct NodeStacks {
  std::string name;
  std::string word;
  std::vector<Stack> stacks;
};

bool begins(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }
bool is_hexadecimal(char byte) { return is_digit(byte) || (byte >= 'a' && byte <= 'f'); }

// Of a headline; nothing: the line is none.
std::optional<int> rank_of(std::string_view line) {
  constexpr std::string_view word = "rank ";
  if (!begins(line, word)) return std::nullopt;
  int rank = -1;
  const auto [stop, error] =
      std::from_chars(line.data() + word.size(), line.data() + line.size(), rank);
  const auto read = static_cast<std::size_t>(stop - line.data());
  if (error != std::errc() || rank < 0 || !begins(line.substr(read), " (pid ")) return std::nullopt;
  return rank;
}

// Numbers behind these words are any process's own, and so are absolute addresses; lines of a
// program ("train.py:120") and places in a function ("+0x1c") are not.
std::string comparable(std::string_view line) {
  static constexpr std::string_view words[] = {"(pid ", "thread ", "Thread ", "Process "};
  std::string text;
  for (std::size_t i = 0; i < line.size();) {
    // Of megabytes nearly all is nothing that any of these begins with.
    const std::size_t next = std::min(line.find_first_of("(tTP0", i), line.size());
    text += line.substr(i, next - i);
    i = next;
    if (i == line.size()) break;
    const auto rest = line.substr(i);
    const auto* const word =
        std::find_if(std::begin(words), std::end(words),
                     [&](std::string_view each) { return begins(rest, each); });
    std::size_t skip = 0;
    if (word != std::end(words)) {
      text += *word;
      i += word->size();
      while (i + skip < line.size() && is_digit(line[i + skip])) ++skip;
    } else if (begins(rest, "0x") && (i == 0 || line[i - 1] != '+')) {
      skip = 2;
      while (i + skip < line.size() && is_hexadecimal(line[i + skip])) ++skip;
    } else {
      text += line[i++];
      continue;
    }
    if (skip > 0) text += '#';
    i += skip;
  }
  return text;
}

std::string key_of(const Stack& stack) {
  std::string key =
      stack.headline.substr(std::min(stack.headline.find(')'), stack.headline.size()));
  for (const std::string& line : stack.lines) key += '\n' + comparable(line);
  return key;
}

void add_word(NodeStacks& node, std::string_view word) {
  while (begins(word, " ")) word.remove_prefix(1);
  if (!node.word.empty() || word.empty()) return;
  node.word = word.substr(0, word_bytes_max);
}

NodeStacks stacks_of(NodeLines told) {
  NodeStacks node;
  node.name = told.node_rank < 0 ? "node on " + told.host
                                 : fmt::format("node {} on {}", told.node_rank, told.host);
  add_word(node, told.why);
  for (std::string& line : told.lines) {
    if (const auto rank = rank_of(line)) {
      node.stacks.push_back({*rank, std::move(line), {}});
    } else if (!node.stacks.empty() && begins(line, " ")) {
      node.stacks.back().lines.push_back(std::move(line));
    } else if (node.stacks.empty()) {
      add_word(node, line);
    }
  }
  return node;
}

std::string text_of(const NodeStacks& node) {
  std::vector<int> ranks;
  for (const Stack& stack : node.stacks) ranks.push_back(stack.rank);
  std::string text = node.name + ": ";
  if (!ranks.empty()) text += rank_names(std::move(ranks));
  if (!node.word.empty()) text += (node.stacks.empty() ? "" : "; ") + node.word;
  return text;
}

// Those that stand alike, by rank.
using Group = std::vector<const Stack*>;

std::vector<Group> groups_of(const std::vector<NodeStacks>& nodes) {
  std::map<std::string, Group> by_key;
  for (const NodeStacks& node : nodes) {
    for (const Stack& stack : node.stacks) by_key[key_of(stack)].push_back(&stack);
  }
  std::vector<Group> groups;
  for (auto& [key, group] : by_key) {
    std::sort(group.begin(), group.end(),
              [](const Stack* a, const Stack* b) { return a->rank < b->rank; });
    groups.push_back(std::move(group));
  }
  std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return a.size() != b.size() ? a.size() < b.size() : a.front()->rank < b.front()->rank;
  });
  return groups;
}

std::vector<int> ranks_of(const Group& group) {
  std::vector<int> ranks;
  for (const Stack* stack : group) ranks.push_back(stack->rank);
  return ranks;
}

std::vector<std::string> block_of(const Group& group, std::size_t lines_max) {
  const Stack& shown = *group.front();
  std::vector<std::string> lines;
  if (group.size() > 1) {
    lines.push_back(
        fmt::format("{}, {} that stand alike; of them", rank_names(ranks_of(group)), group.size()));
  }
  lines.push_back(shown.headline);
  const std::size_t kept = std::min(shown.lines.size(), lines_max);
  lines.insert(lines.end(), shown.lines.begin(),
               shown.lines.begin() + static_cast<std::ptrdiff_t>(kept));
  if (kept < shown.lines.size()) {
    lines.push_back(fmt::format("    [... {} lines more]", shown.lines.size() - kept));
  }
  return lines;
}

std::size_t bytes_of(const std::vector<std::string>& lines) {
  std::size_t bytes = 0;
  for (const std::string& line : lines) bytes += line.size() + 1;
  return bytes;
}

}  // namespace

std::vector<std::string> equal_stack_lines(std::vector<NodeLines> told,
                                           const EqualStacksLimits& limits) {
  std::vector<NodeStacks> nodes;
  for (NodeLines& each : told) {
    // One that has no place in this round has nothing to tell.
    if (each.lines.empty() && each.why.empty()) continue;
    nodes.push_back(stacks_of(std::move(each)));
  }
  std::vector<std::string> lines;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    lines.push_back(text_of(nodes[i]));
    bytes += lines.back().size() + 1;
    if (bytes <= limits.bytes_max / share_of_nodes || i + 1 == nodes.size()) continue;
    lines.push_back(fmt::format("[... {} nodes more]", nodes.size() - i - 1));
    break;
  }
  std::vector<int> left_out;
  for (const Group& group : groups_of(nodes)) {
    std::vector<std::string> block = block_of(group, limits.lines_max);
    const std::size_t size = bytes_of(block);
    if (bytes + size > limits.bytes_max) {
      for (const int rank : ranks_of(group)) left_out.push_back(rank);
      continue;
    }
    bytes += size;
    std::move(block.begin(), block.end(), std::back_inserter(lines));
  }
  if (!left_out.empty()) {
    lines.push_back(fmt::format("[the stacks of {} are left out: more than {} KiB]",
                                rank_names(std::move(left_out)), limits.bytes_max >> 10));
  }
  return lines;
}

}  // namespace ddprun::launcher
