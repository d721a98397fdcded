// The library's parser and writer are templates. Called from here they are compiled once, and not
// in each of two dozen units, where they were a tenth of all code that ddprun's build made.
#include "rendezvous/json/json_text.h"

#include "rendezvous/json/json_depth.h"

namespace ddprun::rendezvous {
namespace {

template <typename Json>
Json value_of(std::string_view text) {
  if (nests_deeper_than(text, json_depth_max)) return Json::value_t::discarded;
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

template <typename Json>
std::string text_of(const Json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

nlohmann::json json_of(std::string_view text) { return value_of<nlohmann::json>(text); }
nlohmann::ordered_json ordered_json_of(std::string_view text) {
  return value_of<nlohmann::ordered_json>(text);
}

std::string json_line(const nlohmann::json& value) { return text_of(value, -1); }
std::string json_line(const nlohmann::ordered_json& value) { return text_of(value, -1); }
std::string json_page(const nlohmann::ordered_json& value) { return text_of(value, 2); }

}  // namespace ddprun::rendezvous
