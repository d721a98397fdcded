// Answers are read with care: whatever listens at the address that was given may have written them.
#include "rendezvous/arbiter/etcd_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "rendezvous/json/json_text.h"
#include "rendezvous/parse_number.h"

namespace ddprun::rendezvous {
namespace {

using EtcdJson = nlohmann::json;

constexpr std::string_view base64_letters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// The first key that does not begin with `folder`, up to where etcd reads then.
std::string end_of(std::string folder) {
  ++folder.back();  // A slash.
  return folder;
}

void append_json(std::string& list, const EtcdJson& item) {
  if (!list.empty()) list += ',';
  list += json_line(item);
}

EtcdJson range_below(const std::string& folder) {
  return {{"key", to_base64(folder)}, {"range_end", to_base64(end_of(folder))}};
}

// A field that is not there is 0; nothing if it is no number.
std::optional<std::int64_t> etcd_number(const EtcdJson& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (!found->is_string()) return {};
  return parse_number<std::int64_t>(found->get_ref<const std::string&>());
}

std::optional<std::string> etcd_bytes(const EtcdJson& pair, const char* name) {
  const auto found = pair.find(name);
  if (found == pair.end()) return "";
  if (!found->is_string()) return {};
  return from_base64(found->get_ref<const std::string&>());
}

// False: it is no answer to a range.
bool read_range(const EtcdJson& range, std::map<std::string, std::string>& values) {
  if (!range.is_object()) return false;
  const auto pairs = range.find("kvs");
  if (pairs == range.end()) return true;
  if (!pairs->is_array()) return false;
  return std::all_of(pairs->begin(), pairs->end(), [&](const EtcdJson& pair) {
    if (!pair.is_object()) return false;
    const auto key = etcd_bytes(pair, "key"), value = etcd_bytes(pair, "value");
    if (!key || !value) return false;
    values[*key] = *value;
    return true;
  });
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t three = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      three = three << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      text += i <= count ? base64_letters[three >> (18 - 6 * i) & 63] : '=';
    }
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return {};
  for (int padding = 0; padding < 2 && !text.empty() && text.back() == '='; ++padding) {
    text.remove_suffix(1);
  }
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char letter : text) {
    const std::size_t value = base64_letters.find(letter);
    if (value == base64_letters.npos) return {};
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 255);
  }
  return bytes;
}

EtcdTransaction& EtcdTransaction::if_absent(const std::string& key) {
  append_json(compare_, {{"key", to_base64(key)},
                         {"target", "CREATE"},
                         {"result", "EQUAL"},
                         {"create_revision", "0"}});
  return *this;
}

EtcdTransaction& EtcdTransaction::if_present(const std::string& key) {
  append_json(compare_, {{"key", to_base64(key)},
                         {"target", "CREATE"},
                         {"result", "GREATER"},
                         {"create_revision", "0"}});
  return *this;
}

EtcdTransaction& EtcdTransaction::if_value(const std::string& key, const std::string& value) {
  append_json(compare_, {{"key", to_base64(key)},
                         {"target", "VALUE"},
                         {"result", "EQUAL"},
                         {"value", to_base64(value)}});
  return *this;
}

EtcdTransaction& EtcdTransaction::put(const std::string& key, const std::string& value,
                                      std::int64_t lease) {
  EtcdJson request = {{"key", to_base64(key)}, {"value", to_base64(value)}};
  if (lease != 0) request["lease"] = std::to_string(lease);
  append_json(then_, {{"request_put", request}});
  return *this;
}

EtcdTransaction& EtcdTransaction::read(const std::string& key) {
  append_json(then_, {{"request_range", {{"key", to_base64(key)}}}});
  return *this;
}

EtcdTransaction& EtcdTransaction::read_below(const std::string& folder) {
  append_json(then_, {{"request_range", range_below(folder)}});
  return *this;
}

EtcdTransaction& EtcdTransaction::remove_below(const std::string& folder) {
  append_json(then_, {{"request_delete_range", range_below(folder)}});
  return *this;
}

EtcdTransaction& EtcdTransaction::remove(const std::string& key) {
  append_json(then_, {{"request_delete_range", {{"key", to_base64(key)}}}});
  return *this;
}

std::string EtcdTransaction::body() const {
  return fmt::format(R"({{"compare":[{}],"success":[{}]}})", compare_, then_);
}

std::optional<EtcdResult> parse_etcd_result(std::string_view body) {
  const EtcdJson answer = json_of(body);
  // Each answer of etcd has a header; a page of some other server has not.
  if (!answer.contains("header")) return {};
  EtcdResult result;
  if (const auto held = answer.find("succeeded"); held != answer.end()) result.held = *held == true;
  const auto responses = answer.find("responses");
  if (responses == answer.end()) return result;
  if (!responses->is_array()) return {};
  for (const EtcdJson& response : *responses) {
    if (!response.is_object()) return {};
    const auto range = response.find("response_range");
    if (range != response.end() && !read_range(*range, result.values)) return {};
  }
  return result;
}

std::optional<std::int64_t> parse_etcd_grant(std::string_view body) {
  const EtcdJson answer = json_of(body);
  if (!answer.is_object()) return {};
  const auto id = etcd_number(answer, "ID");
  return id == 0 ? std::nullopt : id;
}

std::optional<std::int64_t> parse_etcd_keep_alive(std::string_view body) {
  const EtcdJson answer = json_of(body);
  if (!answer.is_object()) return {};
  const auto result = answer.find("result");
  if (result == answer.end() || !result->is_object()) return {};
  return etcd_number(*result, "TTL");
}

std::string etcd_grant_body(std::chrono::seconds lasts) {
  return json_line(EtcdJson{{"TTL", std::to_string(lasts.count())}});
}

std::string etcd_lease_body(std::int64_t lease) {
  return json_line(EtcdJson{{"ID", std::to_string(lease)}});
}

}  // namespace ddprun::rendezvous
