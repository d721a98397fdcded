// JSON from text and to text, as agents, the coordinator and reports exchange it. A core: no
// sockets, threads or clock.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ddprun::rendezvous {

/// Nothing that we read is nested as deep as this, a worker's own error file included. Indented, a
/// megabyte of brackets would be hundreds of gigabytes.
inline constexpr int json_depth_max = 64;

/// What `text` spells, its members by name, or a discarded value (is_discarded(), and no object)
/// when it is not JSON, or is nested deeper than json_depth_max. Never throws.
nlohmann::json json_of(std::string_view text);

/// The same with the members in the order of the text, for what is written again.
nlohmann::ordered_json ordered_json_of(std::string_view text);

/// `value` as one line without its end. Bytes that are no UTF-8 become U+FFFD: names of hosts and
/// files, and the last words of workers, may be anything.
std::string json_line(const nlohmann::json& value);
std::string json_line(const nlohmann::ordered_json& value);

/// The same over several lines, indented by two, for people.
std::string json_page(const nlohmann::ordered_json& value);

}  // namespace ddprun::rendezvous
