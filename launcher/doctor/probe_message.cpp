// Each kind of message has its members named once, for both directions. A member that is missing or
// of another type keeps its default: an older probe is not a broken one.
#include "launcher/doctor/probe_message.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "rendezvous/json/json_text.h"

namespace ddprun::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::size_t list_max = 4'096;

template <typename Archive>
void members(Archive& archive, ProbeHello& hello) {
  archive("protocol", hello.protocol);
  archive("version", hello.version);
  archive("ssh_connection", hello.ssh_connection);
}

template <typename Archive>
void members(Archive& archive, ProbeAsk& ask) {
  archive("what", ask.what);
  archive("names", ask.names);
  archive("nonce", ask.nonce);
  archive("token", ask.token);
  archive("address", ask.address);
  archive("rendezvous_port", ask.rendezvous_port);
  archive("ephemeral_port", ask.ephemeral_port);
  archive("timeout_s", ask.timeout_s);
}

template <typename Archive>
void members(Archive& archive, Listening& listening) {
  archive("has_rendezvous", listening.has_rendezvous);
  archive("holder", listening.holder);
  archive("ephemeral_port", listening.ephemeral_port);
  archive("problem", listening.problem);
}

template <typename Archive>
void members(Archive& archive, PairFacts& pair) {
  archive("rendezvous", pair.rendezvous);
  archive("ephemeral", pair.ephemeral);
  archive("words", pair.words);
  archive("large_stalled", pair.large_stalled);
  archive("latency_s", pair.latency_s);
  archive("bytes_per_s", pair.bytes_per_s);
}

template <typename Archive>
void members(Archive& archive, NetworkInterface& each) {
  archive("name", each.name);
  archive("is_up", each.is_up);
  archive("is_loopback", each.is_loopback);
  archive("mtu", each.mtu);
  archive("addresses", each.addresses);
}

template <typename Archive>
void members(Archive& archive, ResolvedName& name) {
  archive("name", name.name);
  archive("addresses", name.addresses);
  archive("problem", name.problem);
}

template <typename Archive>
void members(Archive& archive, ResourceLimit& limit) {
  archive("soft", limit.soft);
  archive("hard", limit.hard);
}

template <typename Archive>
void members(Archive& archive, FolderSpace& space) {
  archive("path", space.path);
  archive("problem", space.problem);
  archive("bytes", space.bytes);
  archive("free_bytes", space.free_bytes);
  archive("free_files", space.free_files);
}

template <typename Archive>
void members(Archive& archive, GpuState& gpu) {
  archive("index", gpu.index);
  archive("answers", gpu.answers);
  archive("memory_used", gpu.memory_used);
  archive("memory_total", gpu.memory_total);
  archive("pids", gpu.pids);
  archive("slowed", gpu.slowed);
  archive("memory_errors", gpu.memory_errors);
  archive("needs_reset", gpu.needs_reset);
  archive("is_worn_out", gpu.is_worn_out);
}

template <typename Archive>
void members(Archive& archive, GpuFacts& gpu) {
  archive("count", gpu.count);
  archive("cards", gpu.cards);
  archive("driver", gpu.driver);
  archive("driver_library", gpu.driver_library);
  archive("has_driver_library", gpu.has_driver_library);
  archive("cuda", gpu.cuda);
  archive("nccl", gpu.nccl);
  archive("is_silent", gpu.is_silent);
  archive("states", gpu.states);
}

template <typename Archive>
void members(Archive& archive, MachineFacts& facts) {
  archive("version", facts.version);
  archive("host_name", facts.host_name);
  archive("kernel", facts.kernel);
  archive("boot_id", facts.boot_id);
  archive("network", facts.network);
  archive("loopback_problem", facts.loopback_problem);
  archive("names", facts.names);
  archive("interfaces", facts.interfaces);
  archive("default_interface", facts.default_interface);
  archive("nccl_interface", facts.nccl_interface);
  archive("gloo_interface", facts.gloo_interface);
  archive("open_files", facts.open_files);
  archive("locked_memory", facts.locked_memory);
  archive("processes", facts.processes);
  archive("core_file", facts.core_file);
  archive("shared_memory", facts.shared_memory);
  archive("temporary", facts.temporary);
  archive("temporary_instead", facts.temporary_instead);
  archive("memory_available", facts.memory_available);
  archive("cgroup_memory_max", facts.cgroup_memory_max);
  archive("cgroup_memory_used", facts.cgroup_memory_used);
  archive("cgroup_cpus", facts.cgroup_cpus);
  archive("cgroup_pids_max", facts.cgroup_pids_max);
  archive("cpus", facts.cpus);
  archive("has_infiniband", facts.has_infiniband);
  archive("gpu", facts.gpu);
  archive("slots", facts.slots);
  archive("secret_file", facts.secret_file);
  archive("secret_problem", facts.secret_problem);
  archive("secret_proof", facts.secret_proof);
}

// What can be no UTF-8 is none of ours, and JSON could not be written with it.
std::string as_ascii(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return result;
}

class Writer {
 public:
  template <typename T>
  void operator()(const char* name, T& value) {
    json_[name] = as_json(value);
  }
  const Json& json() const { return json_; }

 private:
  template <typename T>
  static Json as_json(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      return as_ascii(value);
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<int>(value);
    } else if constexpr (std::is_arithmetic_v<T>) {
      return value;
    } else {
      Writer inner;
      members(inner, value);
      return inner.json_;
    }
  }
  template <typename T>
  static Json as_json(std::vector<T>& list) {
    Json result = Json::array();
    for (T& each : list) result.push_back(as_json(each));
    return result;
  }

  Json json_ = Json::object();
};

class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}
  template <typename T>
  void operator()(const char* name, T& value) {
    const auto found = json_.find(name);
    if (found != json_.end()) take(*found, value);
  }

 private:
  static void take(const Json& json, std::string& text) {
    if (json.is_string()) text = harmless(json.get_ref<const std::string&>());
  }
  static void take(const Json& json, bool& value) {
    if (json.is_boolean()) value = json.get<bool>();
  }
  static void take(const Json& json, int& value) {
    if (!json.is_number_integer()) return;
    const auto number = json.get<std::int64_t>();
    value = static_cast<int>(std::clamp<std::int64_t>(number, 0, 1 << 30));
  }
  static void take(const Json& json, std::uint64_t& value) {
    if (json.is_number_unsigned()) value = json.get<std::uint64_t>();
  }
  static void take(const Json& json, double& value) {
    if (!json.is_number()) return;
    const auto number = json.get<double>();
    if (std::isfinite(number)) value = std::clamp(number, 0.0, 1e15);
  }
  static void take(const Json& json, Reached& value) {
    int number = 0;
    take(json, number);
    value = number <= static_cast<int>(Reached::Failed) ? static_cast<Reached>(number)
                                                        : Reached::Failed;
  }
  static void take(const Json& json, ProbeAsk::What& value) {
    int number = 0;
    take(json, number);
    if (number <= static_cast<int>(ProbeAsk::What::Connect)) {
      value = static_cast<ProbeAsk::What>(number);
    }
  }
  template <typename T>
  static void take(const Json& json, std::vector<T>& list) {
    if (!json.is_array()) return;
    list.clear();
    for (const Json& each : json) {
      if (list.size() == list_max) return;
      take(each, list.emplace_back());
    }
  }
  template <typename T>
  static void take(const Json& json, T& value) {
    if (!json.is_object()) return;
    Reader inner(json);
    members(inner, value);
  }

  const Json& json_;
};

template <typename T>
Json to_json(T value) {
  Writer writer;
  members(writer, value);
  return writer.json();
}

std::string answer(const char* kind, const Json& json) {
  return std::string(probe_mark) + rendezvous::json_line(Json{{kind, json}}) + "\n";
}

Json parsed(std::string_view line) {
  Json json = rendezvous::json_of(line);
  return json.is_object() ? json : Json::object();
}

template <typename T>
std::optional<T> read_answer(std::string_view line, const char* kind) {
  const Json json = parsed(line);
  const auto found = json.find(kind);
  if (found == json.end() || !found->is_object()) return std::nullopt;
  T value;
  Reader reader(*found);
  members(reader, value);
  return value;
}

}  // namespace

std::string harmless(std::string_view text, std::size_t bytes_max) {
  std::string result(text.substr(0, bytes_max));
  for (char& c : result) {
    if (c < ' ' || c > '~') c = '?';
  }
  return result;
}

std::string to_line(const ProbeHello& hello) { return answer("hello", to_json(hello)); }
std::string to_line(const ProbeAsk& ask) {
  return rendezvous::json_line(Json{{"ask", to_json(ask)}}) + "\n";
}
std::string to_line(const MachineFacts& facts) { return answer("facts", to_json(facts)); }
std::string to_line(const Listening& listening) { return answer("listening", to_json(listening)); }
std::string to_line(const PairFacts& pair) { return answer("pair", to_json(pair)); }
std::string clock_line(double wall_s) { return answer("clock", Json{{"wall_s", wall_s}}); }

std::optional<ProbeHello> read_probe_hello(std::string_view line) {
  return read_answer<ProbeHello>(line, "hello");
}
std::optional<ProbeAsk> read_probe_ask(std::string_view line) {
  return read_answer<ProbeAsk>(line, "ask");
}
std::optional<MachineFacts> read_machine_facts(std::string_view line) {
  return read_answer<MachineFacts>(line, "facts");
}
std::optional<Listening> read_listening(std::string_view line) {
  return read_answer<Listening>(line, "listening");
}
std::optional<PairFacts> read_pair_facts(std::string_view line) {
  return read_answer<PairFacts>(line, "pair");
}
std::optional<double> read_clock(std::string_view line) {
  const Json json = parsed(line);
  const auto found = json.find("clock");
  if (found == json.end() || !found->is_object()) return std::nullopt;
  const auto wall = found->find("wall_s");
  if (wall == found->end() || !wall->is_number()) return std::nullopt;
  const auto seconds = wall->get<double>();
  return std::isfinite(seconds) ? std::optional(seconds) : std::nullopt;
}

std::string facts_json(const MachineFacts& facts) {
  Json json = to_json(facts);
  json.erase("secret_proof");
  return rendezvous::json_line(json);
}

}  // namespace ddprun::launcher
