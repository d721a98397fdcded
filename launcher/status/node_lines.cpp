// JSON has no form for bytes that are no text, which logs may hold: they are replaced.
#include "launcher/status/node_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "rendezvous/control/clean_text.h"
#include "rendezvous/control/visible_text.h"
#include "rendezvous/json/json_text.h"

namespace ddprun::launcher {
namespace {

using LinesJson = nlohmann::ordered_json;

constexpr std::size_t line_shown_bytes_max = 4'096;
constexpr std::size_t lines_shown_max = 65'536;

std::string fit_to_print(const std::string& line) {
  return rendezvous::visible_text(
      rendezvous::clean_text(line, line_shown_bytes_max, rendezvous::Keep::Head),
      rendezvous::Lines::Escape);
}

// The last ones that fit. What a character costs in JSON is counted at its dearest.
LinesJson last_of(const std::vector<std::string>& lines, std::size_t bytes_max) {
  std::size_t bytes = 0, first = lines.size();
  while (first > 0) {
    bytes += rendezvous::json_line(LinesJson(fit_to_print(lines[first - 1]))).size() + 1;
    if (bytes > bytes_max) break;
    --first;
  }
  LinesJson kept = LinesJson::array();
  if (first > 0) kept.push_back(fmt::format("... {} lines before", first));
  for (; first < lines.size(); ++first) kept.push_back(fit_to_print(lines[first]));
  return kept;
}

std::vector<std::string> texts_of(const nlohmann::json& object) {
  std::vector<std::string> lines;
  const auto found = object.find("lines");
  if (found == object.end() || !found->is_array()) return lines;
  for (const nlohmann::json& line : *found) {
    if (lines.size() == lines_shown_max) break;
    if (line.is_string()) lines.push_back(fit_to_print(line));
  }
  return lines;
}

}  // namespace

std::string lines_to_json(const std::vector<std::string>& lines, std::size_t bytes_max) {
  return rendezvous::json_line(
      LinesJson{{"lines", last_of(lines, bytes_max - std::min<std::size_t>(bytes_max, 64))}});
}

std::optional<std::vector<std::string>> parse_lines(std::string_view text) {
  const auto object = rendezvous::json_of(text);
  if (!object.is_object() || !object.contains("lines")) return std::nullopt;
  return texts_of(object);
}

std::string nodes_to_json(const std::vector<NodeLines>& nodes, std::size_t bytes_max) {
  LinesJson list = LinesJson::array();
  const std::size_t each = bytes_max / std::max<std::size_t>(nodes.size(), 1);
  for (const NodeLines& node : nodes) {
    LinesJson object = {{"host", fit_to_print(node.host)},
                        {"node_rank", node.node_rank},
                        {"why", fit_to_print(node.why)}};
    const std::size_t head = rendezvous::json_line(object).size() + 64;
    object["lines"] = last_of(node.lines, each - std::min(each, head));
    list.push_back(std::move(object));
  }
  return rendezvous::json_line(LinesJson{{"nodes", std::move(list)}});
}

std::optional<std::vector<NodeLines>> parse_nodes(std::string_view text) {
  const auto object = rendezvous::json_of(text);
  if (!object.is_object() || !object.contains("nodes") || !object["nodes"].is_array()) {
    return std::nullopt;
  }
  std::vector<NodeLines> nodes;
  for (const nlohmann::json& each : object["nodes"]) {
    if (!each.is_object() || nodes.size() == lines_shown_max) continue;
    NodeLines node;
    const auto text_at = [&](const char* name) {
      const auto found = each.find(name);
      return found != each.end() && found->is_string() ? fit_to_print(*found) : std::string();
    };
    node.host = text_at("host");
    node.why = text_at("why");
    if (each.contains("node_rank") && each["node_rank"].is_number_integer()) {
      const auto rank = each["node_rank"].get<std::int64_t>();
      node.node_rank = static_cast<int>(std::clamp<std::int64_t>(rank, -1, 1'000'000));
    }
    node.lines = texts_of(each);
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<std::string> nodes_text(const std::vector<NodeLines>& nodes) {
  std::vector<std::string> lines;
  for (const NodeLines& node : nodes) {
    if (node.lines.empty() && node.why.empty()) continue;
    const std::string name = node.node_rank < 0
                                 ? fmt::format("node on {}", node.host)
                                 : fmt::format("node {} on {}", node.node_rank, node.host);
    lines.push_back(node.why.empty() ? name : fmt::format("{}: {}", name, node.why));
    lines.insert(lines.end(), node.lines.begin(), node.lines.end());
  }
  return lines;
}

}  // namespace ddprun::launcher
