// What each node of a job shows of its ranks in lines of text: their stacks, the ends of their
// logs.
//
// A core: values in, text out. Whoever reads it may print it: control characters are visible, and
// all is bounded, whatever another machine has written.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

struct NodeLines {
  std::string host;
  int node_rank = -1;
  std::vector<std::string> lines;
  std::string why;  // There are none; "" = there are, or nothing is to be shown.
};

// Of one node: one line of JSON of at most `bytes_max`; the first lines go where they are too many.
std::string lines_to_json(const std::vector<std::string>& lines, std::size_t bytes_max);
std::optional<std::vector<std::string>> parse_lines(std::string_view text);

// Of all; where they are too many, each node keeps its last ones.
std::string nodes_to_json(const std::vector<NodeLines>& nodes, std::size_t bytes_max);
std::optional<std::vector<NodeLines>> parse_nodes(std::string_view text);

// As people read them: a head for each node.
std::vector<std::string> nodes_text(const std::vector<NodeLines>& nodes);

}  // namespace ddprun::launcher
