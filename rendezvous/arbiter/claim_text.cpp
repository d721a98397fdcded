// Written by nodes of the job, and read with care all the same: whoever may write to the arbiter's
// place may have written it.
#include "rendezvous/arbiter/claim_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "rendezvous/control/visible_text.h"
#include "rendezvous/json/json_text.h"

namespace ddprun::rendezvous {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::optional<std::string> claim_word(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return {};
  return visible_text(found->get_ref<const std::string&>(), Lines::Escape);
}

std::optional<int> claim_number(const json& object, const char* name, int most) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return {};
  const auto number = found->get<std::int64_t>();
  if (number < 0 || number > most) return {};
  return static_cast<int>(number);
}

}  // namespace

std::string claim_time(std::time_t seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds));
}

std::string claim_text(const Claim& claim, const std::string& run_id, const std::string& job,
                       RoundName round, const std::string& when) {
  const ordered_json object = {{"run_id", run_id},
                               {"job", job},
                               {"after_term", round.term},
                               {"after_attempt", round.attempt},
                               {"node_id", claim.holder.node_id},
                               {"host", claim.holder.host},
                               {"address", claim.holder.address},
                               {"port", claim.holder.port},
                               {"term", claim.term},
                               {"kept", claim.kept},
                               {"when", when}};
  return json_line(object) + "\n";
}

std::optional<Claim> parse_claim(std::string_view text) {
  const json object = json_of(text);
  if (!object.is_object()) return {};
  const auto node_id = claim_word(object, "node_id"), host = claim_word(object, "host"),
             address = claim_word(object, "address");
  const auto port = claim_number(object, "port", 65'535);
  // An incumbent may raise it by a thousand (claimant.cpp), as often as its peers die.
  const auto term = claim_number(object, "term", 1'000'000'000);
  const auto kept = object.find("kept");
  if (!node_id || node_id->empty() || !host || !address || !port || !term) return {};
  if (kept == object.end() || !kept->is_boolean()) return {};
  return Claim{.holder = {.node_id = *node_id, .host = *host, .address = *address, .port = *port},
               .term = *term,
               .kept = kept->get<bool>()};
}

}  // namespace ddprun::rendezvous
