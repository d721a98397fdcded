// A name goes onto ssh's command line, so what could be read as an option there, or by a shell, is
// no name.
#include "launcher/hosts/host_list.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "rendezvous/json/json_text.h"
#include "rendezvous/parse_number.h"

namespace ddprun::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::size_t name_bytes_max = 255;  // Of a domain name; longer ones are no hosts.

std::string shown(std::string_view text) {
  std::string safe;
  for (const char c : text.substr(0, 80)) {
    const auto code = static_cast<unsigned char>(c);
    safe += code >= 32 && code != 127 ? c : '?';
  }
  return "\"" + safe + (text.size() > 80 ? "...\"" : "\"");
}

int parse_workers(std::string_view text, std::string_view word) {
  const auto number = rendezvous::parse_number<int>(text);
  if (!number || *number < 1 || *number > workers_of_host_max) {
    throw HostListError(shown(word) + ": expected a number of workers from 1 to " +
                        std::to_string(workers_of_host_max) + ", not " + shown(text));
  }
  return *number;
}

void require_plain(std::string_view text, std::string_view extra, std::string_view word) {
  const auto is_plain = [&](unsigned char c) {
    return c < 128 && (std::isalnum(c) != 0 || extra.find(static_cast<char>(c)) != extra.npos);
  };
  if (text.empty() || text.front() == '-' || text.size() > name_bytes_max ||
      !std::all_of(text.begin(), text.end(), is_plain)) {
    throw HostListError(shown(word) + ": expected a host, as in node1, node1:8, user@node1 or " +
                        "gpu[01-16]:8");
  }
}

Host make_host(const std::string& user, const std::string& name, std::optional<int> workers,
               std::string_view word) {
  if (!user.empty()) require_plain(user, "._-+\\@", word);
  require_plain(name, "._-:%", word);
  return {user.empty() ? name : user + "@" + name, name, workers, {}};
}

// What stands between "[" and "]" as words: "08-10,12" -> 08 09 10 12.
std::vector<std::string> expand_numbers(std::string_view list, std::string_view pattern) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view part = list.substr(begin, end - begin);
    const std::size_t dash = part.find('-');
    const std::string_view low_text = part.substr(0, dash);
    const std::string_view high_text = dash == part.npos ? low_text : part.substr(dash + 1);
    const auto low = rendezvous::parse_number<long>(low_text);
    const auto high = rendezvous::parse_number<long>(high_text);
    if (!low || !high || *high < *low || low_text.size() > 12) {
      throw HostListError(shown(pattern) + ": expected numbers and ranges in brackets, as in " +
                          "gpu[01-16,20]");
    }
    if (static_cast<std::size_t>(*high - *low) >= hosts_max - words.size()) {
      throw HostListError(shown(pattern) + ": more than " + std::to_string(hosts_max) + " hosts");
    }
    for (long number = *low; number <= *high; ++number) {
      std::string digits = std::to_string(number);
      digits.insert(0, low_text.size() - std::min(low_text.size(), digits.size()), '0');
      words.push_back(std::move(digits));
    }
    begin = end + 1;
  }
  return words;
}

// "[user@]host[:N]", ranges and IPv6 addresses included. As for ssh, a user may have an "@" (of a
// directory service), a host has none.
std::vector<Host> parse_word(const std::string& word) {
  const std::size_t at = word.rfind('@');
  if (word.rfind('@', 0) == 0) require_plain("", "", word);
  const std::string user = at == word.npos ? "" : word.substr(0, at);
  std::string rest = at == word.npos ? word : word.substr(at + 1);
  std::optional<int> workers;
  const std::size_t close = rest.find(']');
  if (rest.rfind('[', 0) == 0 && close != rest.npos &&
      rest.find(':') < close) {  // An IPv6 address, in brackets where a number may follow.
    const std::string tail = rest.substr(close + 1);
    if (!tail.empty() && tail[0] != ':') require_plain("", "", word);
    if (!tail.empty()) workers = parse_workers(tail.substr(1), word);
    return {make_host(user, rest.substr(1, close - 1), workers, word)};
  }
  if (std::count(rest.begin(), rest.end(), ':') > 1) return {make_host(user, rest, workers, word)};
  if (const std::size_t colon = rest.find(':'); colon != rest.npos) {
    workers = parse_workers(std::string_view(rest).substr(colon + 1), word);
    rest.resize(colon);
  }
  std::vector<Host> hosts;
  for (const std::string& name : expand_ranges(rest)) {
    hosts.push_back(make_host(user, name, workers, word));
  }
  return hosts;
}

class Collected {
 public:
  void add(Host host) {
    const auto [found, is_new] = place_.emplace(host.login, list_.hosts.size());
    if (is_new) {
      if (list_.hosts.size() == hosts_max) {
        throw HostListError("more than " + std::to_string(hosts_max) + " hosts");
      }
      list_.hosts.push_back(std::move(host));
      return;
    }
    Host& known = list_.hosts[found->second];
    const int sum = known.workers.value_or(1) + host.workers.value_or(1);
    if (sum > workers_of_host_max) {
      throw HostListError(shown(host.login) + ": more than " + std::to_string(workers_of_host_max) +
                          " workers");
    }
    known.workers = sum;
  }
  void add_variable(std::string variable) { list_.variables.push_back(std::move(variable)); }
  HostList take(const std::string& where) {
    if (list_.hosts.empty()) throw HostListError(where + "no host is named");
    return std::move(list_);
  }

 private:
  HostList list_;
  std::map<std::string, std::size_t> place_;
};

// "slots=8", as mpirun and DeepSpeed have it. "max_slots" says how far mpirun may go beyond, which
// we never do.
void read_slots(const std::string& word, std::vector<Host>& hosts) {
  for (const char* limit : {"max_slots=", "max-slots="}) {
    if (word.rfind(limit, 0) == 0) {
      parse_workers(std::string_view(word).substr(10), word);
      return;
    }
  }
  if (word.rfind("slots=", 0) != 0) {
    throw HostListError(shown(word) + ": expected slots=N, or nothing, behind a host");
  }
  for (Host& host : hosts) {
    if (host.workers) throw HostListError(shown(word) + ": the host has a number already");
    host.workers = parse_workers(std::string_view(word).substr(6), word);
  }
}

// As Open MPI takes it, "slots = 8" is "slots=8".
std::string without_blanks_at_equals(const std::string& line) {
  std::string text;
  for (const char c : line) {
    const bool is_blank = c == ' ' || c == '\t';
    if (is_blank && !text.empty() && text.back() == '=') continue;
    if (c == '=') text.erase(text.find_last_not_of(" \t") + 1);
    text += c;
  }
  return text;
}

void read_line(const std::string& line, Collected& collected) {
  std::istringstream words(without_blanks_at_equals(line.substr(0, line.find('#'))));
  std::string word;
  if (!(words >> word)) return;
  std::vector<Host> hosts = parse_word(word);
  while (words >> word) read_slots(word, hosts);
  for (Host& host : hosts) collected.add(std::move(host));
}

// "[" begins an IPv6 address as well.
bool is_json(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return false;
  if (text[first] == '{') return true;
  const std::size_t next = text.find_first_not_of(" \t\r\n", first + 1);
  return text[first] == '[' && next != text.npos && (text[next] == '{' || text[next] == ']');
}

std::string text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> texts_at(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return texts;
  const auto is_text = [](const Json& item) { return item.is_string(); };
  if (!found->is_array() || !std::all_of(found->begin(), found->end(), is_text)) {
    throw HostListError(std::string("\"") + key + "\": expected a list of texts");
  }
  for (const Json& item : *found) texts.push_back(item.get<std::string>());
  return texts;
}

void read_json_host(const Json& item, Collected& collected) {
  if (text_at(item, "ssh").empty()) {
    throw HostListError("expected {\"ssh\": \"HOST\", ...} for each host");
  }
  std::vector<Host> hosts = parse_word(text_at(item, "ssh"));
  const std::vector<std::string> addresses = texts_at(item, "ips");
  for (const std::string& address : addresses) require_plain(address, "._-:%", address);
  if (hosts.size() > 1 && !addresses.empty()) {
    throw HostListError("\"ips\": one host has addresses of its own, and not a range of them");
  }
  if (const auto slots = item.find("slots"); slots != item.end()) {
    for (Host& host : hosts) host.workers = parse_workers(slots->dump(), "\"slots\"");
  }
  for (Host& host : hosts) {
    host.addresses = addresses;
    collected.add(std::move(host));
  }
}

HostList parse_json(const std::string& text) {
  const Json json = rendezvous::json_of(text);
  if (json.is_discarded()) {
    throw HostListError("this begins as JSON, but is none: check its commas and quotes");
  }
  Collected collected;
  const Json* hosts = &json;
  if (json.is_object()) {
    const auto found = json.find("hosts");
    if (found == json.end()) throw HostListError("there is no list \"hosts\" in it");
    hosts = &*found;
    for (std::string& variable : texts_at(json, "envs")) {
      if (variable.find('=') == variable.npos || variable[0] == '=') {
        throw HostListError(shown(variable) + " in \"envs\": expected NAME=VALUE");
      }
      collected.add_variable(std::move(variable));
    }
  }
  if (!hosts->is_array()) throw HostListError("\"hosts\": expected a list");
  for (const Json& item : *hosts) read_json_host(item, collected);
  return collected.take("");
}

}  // namespace

std::vector<std::string> expand_ranges(const std::string& pattern) {
  std::vector<std::string> names{""};
  const auto append = [&](const std::vector<std::string>& ends) {
    if (ends.size() > hosts_max / names.size()) {
      throw HostListError(shown(pattern) + ": more than " + std::to_string(hosts_max) + " hosts");
    }
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& end : ends) longer.push_back(name + end);
    }
    names = std::move(longer);
  };
  if (pattern.size() > name_bytes_max) require_plain("", "", pattern);
  for (std::size_t begin = 0; begin < pattern.size();) {
    const std::size_t open = std::min(pattern.find('[', begin), pattern.size());
    append({pattern.substr(begin, open - begin)});
    if (open == pattern.size()) break;
    const std::size_t close = pattern.find(']', open);
    if (close == pattern.npos) {
      throw HostListError(shown(pattern) + ": the bracket is not closed");
    }
    append(expand_numbers(std::string_view(pattern).substr(open + 1, close - open - 1), pattern));
    begin = close + 1;
  }
  return names;
}

HostList parse_host_list(const std::string& text) {
  Collected collected;
  int depth = 0;
  std::string word;
  const auto finish = [&] {
    if (word.empty()) throw HostListError(shown(text) + ": a host is missing between commas");
    for (Host& host : parse_word(word)) collected.add(std::move(host));
    word.clear();
  };
  for (const char c : text) {
    depth += (c == '[') - (c == ']');
    if (c == ',' && depth <= 0) {
      finish();
    } else {
      word += c;
    }
  }
  finish();
  return collected.take("");
}

HostList parse_hostfile(const std::string& content, const std::string& file) {
  constexpr std::string_view utf8_mark = "\xEF\xBB\xBF";  // With which Windows' editors begin.
  const std::string text =
      content.rfind(utf8_mark, 0) == 0 ? content.substr(utf8_mark.size()) : content;
  if (is_json(text)) {
    try {
      return parse_json(text);
    } catch (const HostListError& error) {
      throw HostListError(file + ": " + error.what());
    }
  }
  Collected collected;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    try {
      read_line(line, collected);
    } catch (const HostListError& error) {
      throw HostListError(file + ":" + std::to_string(number) + ": " + error.what());
    }
  }
  return collected.take(file + ": ");
}

}  // namespace ddprun::launcher
