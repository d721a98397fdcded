// Microseconds, since digits of a double would be most of what a large job sends.
#include "launcher/stall/node_paces.h"

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "rendezvous/json/json_text.h"

namespace ddprun::launcher {
namespace {

using PacesJson = nlohmann::ordered_json;

// No step lasts a year.
constexpr double step_s_most = 31'536'000;
constexpr std::int64_t us_most = 31'536'000'000'000;

std::int64_t us_of(double seconds) { return std::llround(1e6 * seconds); }

std::int64_t number_at(const nlohmann::json& object, const char* name, std::int64_t most) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return -1;
  if (found->is_number_unsigned() && found->get<std::uint64_t>() > std::uint64_t(most)) return -1;
  return found->get<std::int64_t>();
}

}  // namespace

void NodePaces::add(int rank, const RankProgress& progress) {
  if (progress.step_s <= 0 || progress.step_s > step_s_most) return;
  stands = stands || progress.age_s.value_or(0) > 1 + 3 * progress.step_s;
  ranks.push_back({rank, own_time_s(progress), progress.step_s, node, host});
}

std::string paces_to_json(const NodePaces& paces) {
  PacesJson object = {{"stands", paces.stands}, {"ranks", PacesJson::array()}};
  for (const RankPace& rank : paces.ranks) {
    object["ranks"].push_back(
        {{"rank", rank.rank}, {"own_us", us_of(rank.own_s)}, {"step_us", us_of(rank.step_s)}});
  }
  return rendezvous::json_line(object);
}

std::optional<NodePaces> parse_paces(std::string_view text, int node, const std::string& host,
                                     int world_size) {
  const auto object = rendezvous::json_of(text);
  if (!object.is_object() || !object.contains("ranks") || !object["ranks"].is_array()) {
    return std::nullopt;
  }
  NodePaces paces{.node = node, .host = host};
  paces.stands = object.value("stands", nlohmann::json()) == true;
  for (const nlohmann::json& each : object["ranks"]) {
    if (!each.is_object()) continue;
    const std::int64_t rank = number_at(each, "rank", world_size - 1);
    const std::int64_t own_us = number_at(each, "own_us", us_most);
    const std::int64_t step_us = number_at(each, "step_us", us_most);
    if (rank < 0 || own_us < 0 || step_us <= 0) continue;
    paces.ranks.push_back({static_cast<int>(rank), 1e-6 * static_cast<double>(own_us),
                           1e-6 * static_cast<double>(step_us), node, host});
  }
  return paces;
}

std::vector<RankPace> paces_of(const std::vector<NodePaces>& nodes) {
  std::vector<RankPace> ranks;
  for (const NodePaces& node : nodes) {
    if (node.stands) return {};
    ranks.insert(ranks.end(), node.ranks.begin(), node.ranks.end());
  }
  return ranks;
}

}  // namespace ddprun::launcher
