// JSON on one line each. What comes back from another host may be anything, so nothing here throws
// for it.
#include "launcher/hosts/node_request.h"

#include <algorithm>
#include <climits>
#include <nlohmann/json.hpp>
#include <utility>

#include "rendezvous/json/json_text.h"
#include "rendezvous/parse_number.h"

namespace ddprun::launcher {
namespace {

using Json = nlohmann::json;

// Variables and arguments may hold any bytes, JSON only UTF-8: each byte becomes a letter of
// Latin-1 and is made one again.
std::string as_utf8(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return text;
}

std::string as_bytes(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto code = static_cast<unsigned char>(text[i]);
    const bool pair = (code & 0xFC) == 0xC0 && i + 1 < text.size();
    if (!pair) {
      bytes += text[i];
    } else {
      bytes += static_cast<char>((code << 6) | (static_cast<unsigned char>(text[++i]) & 0x3F));
    }
  }
  return bytes;
}

Json list_of(const std::vector<std::string>& words) {
  Json list = Json::array();
  for (const std::string& word : words) list.push_back(as_utf8(word));
  return list;
}

std::vector<std::string> words_of(const Json& list) {
  std::vector<std::string> words;
  for (const Json& word : list) words.push_back(as_bytes(word.get<std::string>()));
  return words;
}

// json's own conversion would take 1e300, too, whose value as an int is undefined.
int whole_number(const Json& json, const char* name) {
  const auto number = json.at(name).get_ref<const Json::number_integer_t&>();
  return static_cast<int>(std::clamp<Json::number_integer_t>(number, INT_MIN, INT_MAX));
}

// `read` is given an object, and may throw what a member of another type throws.
template <typename Read>
auto read_object(std::string_view line, Read read) -> std::optional<decltype(read(Json{}))> {
  const Json json = rendezvous::json_of(line);
  if (!json.is_object()) return std::nullopt;
  try {
    return read(json);
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::string marked(const std::string& mark, const Json& json) {
  return message_mark(mark) + rendezvous::json_line(json) + "\n";
}

}  // namespace

std::string message_mark(const std::string& mark) { return "\001" + mark + " "; }

std::string to_line(const NodeHello& hello) {
  const Json json{{"protocol", hello.protocol},
                  {"version", as_utf8(hello.version)},
                  {"ssh_connection", as_utf8(hello.ssh_connection)}};
  return std::string(hello_mark) + rendezvous::json_line(json) + "\n";
}

std::string to_line(const NodeRequest& request) {
  Json json{{"mark", request.mark},
            {"folder", as_utf8(request.folder)},
            {"variables", list_of(request.variables)},
            {"arguments", list_of(request.arguments)},
            {"has_secret", request.has_secret},
            {"any_port", request.any_port}};
  if (request.is_host) json["is_host"] = *request.is_host;
  return rendezvous::json_line(json) + "\n";
}

std::string opened_line(const std::string& mark, int port) {
  return marked(mark, {{"opened", port}});
}

std::string begun_line(const std::string& mark) { return marked(mark, {{"begun", true}}); }

std::string to_line(const std::string& mark, const NodeEnd& end) {
  return marked(mark, {{"status", end.status},
                       {"node_rank", end.node_rank},
                       {"has_culprit", end.has_culprit},
                       {"text", as_utf8(end.text)},
                       {"is_block", end.is_block},
                       {"report", as_utf8(end.report)},
                       {"error_file", as_utf8(end.error_file)}});
}

std::string signal_line(int signal) { return "signal " + std::to_string(signal) + "\n"; }

std::optional<NodeHello> read_hello(std::string_view line) {
  return read_object(line, [](const Json& json) {
    return NodeHello{whole_number(json, "protocol"),
                     as_bytes(json.at("version").get<std::string>()),
                     as_bytes(json.at("ssh_connection").get<std::string>())};
  });
}

std::optional<NodeRequest> read_request(std::string_view line) {
  return read_object(line, [](const Json& json) {
    NodeRequest request{.mark = json.at("mark").get<std::string>(),
                        .folder = as_bytes(json.at("folder").get<std::string>()),
                        .variables = words_of(json.at("variables")),
                        .arguments = words_of(json.at("arguments")),
                        .has_secret = json.at("has_secret").get<bool>(),
                        .any_port = json.at("any_port").get<bool>(),
                        .is_host = std::nullopt};
    if (json.contains("is_host")) request.is_host = json.at("is_host").get<bool>();
    return request;
  });
}

std::optional<int> read_opened(std::string_view line) {
  return read_object(line, [](const Json& json) { return whole_number(json, "opened"); });
}

bool is_begun(std::string_view line) {
  return read_object(line, [](const Json& json) { return json.at("begun").get<bool>(); })
      .value_or(false);
}

std::optional<NodeEnd> read_end(std::string_view line) {
  return read_object(line, [](const Json& json) {
    return NodeEnd{.status = whole_number(json, "status"),
                   .node_rank = whole_number(json, "node_rank"),
                   .has_culprit = json.at("has_culprit").get<bool>(),
                   .text = as_bytes(json.at("text").get<std::string>()),
                   .is_block = json.at("is_block").get<bool>(),
                   .report = as_bytes(json.at("report").get<std::string>()),
                   .error_file = as_bytes(json.at("error_file").get<std::string>())};
  });
}

std::optional<int> read_signal(std::string_view line) {
  constexpr std::string_view word = "signal ";
  if (line.substr(0, word.size()) != word) return std::nullopt;
  const auto signal = rendezvous::parse_number<int>(line.substr(word.size()));
  return signal && *signal >= 1 && *signal <= 64 ? signal : std::nullopt;
}

void MarkedText::add(std::string_view bytes, const Into& into) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::exchange(held_, {});
    joined += bytes;
    bytes = joined;
  }
  while (!bytes.empty()) {
    const std::size_t begin = bytes.find(mark_[0]);
    if (begin > 0) into.text(bytes.substr(0, begin));
    if (begin == bytes.npos) return;
    bytes.remove_prefix(begin);
    const std::size_t compared = std::min(bytes.size(), mark_.size());
    const bool fits = bytes.substr(0, compared) == std::string_view(mark_).substr(0, compared);
    const std::size_t end = fits ? bytes.find('\n') : 0;
    if (!fits || (end == bytes.npos && bytes.size() > message_bytes_max)) {
      into.text(bytes.substr(0, 1));
      bytes.remove_prefix(1);
    } else if (end == bytes.npos) {
      held_ = bytes;
      return;
    } else {
      const std::string line(bytes.substr(mark_.size(), end - mark_.size()));
      bytes.remove_prefix(end + 1);
      into.message(line);
    }
  }
}

void MarkedText::finish(const Into& into) {
  if (!held_.empty()) into.text(held_);
  held_.clear();
}

}  // namespace ddprun::launcher
