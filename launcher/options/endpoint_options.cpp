// torchrun's precedence and defaults for where nodes meet; the differences are told as notes.
#include "launcher/options/endpoint_options.h"

#include <algorithm>
#include <stdexcept>

#include "launcher/options/values.h"
#include "rendezvous/control/clean_text.h"
#include "rendezvous/host_and_port.h"
#include "rendezvous/random_id.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr std::uint16_t static_port = 29500;  // torchrun's own defaults.
constexpr std::uint16_t c10d_port = 29400;
constexpr std::uint16_t etcd_port = 2379;
constexpr std::size_t run_id_bytes_max = 256;
// `welcome` tells agents of it in milliseconds, in an int.
constexpr std::chrono::milliseconds heartbeat_timeout_max = std::chrono::seconds(1'000'000);

// A UUID by its look, because torchrun's are.
std::string random_run_id() {
  std::string id = rendezvous::random_id();
  for (const std::size_t at : {8, 13, 18, 23}) id.insert(at, "-");
  return id;
}

void decide_run_id(const SplitArguments& given, LaunchOptions& result) {
  const auto* id = given.find("rdzv-id");
  if (id != nullptr) result.run_id = id->value;
  if (id != nullptr && !id->value.empty()) {
    result.endpoint_sources.run_id = id->source;
  } else if (result.standalone) {
    result.endpoint_sources.run_id = given.find("standalone")->source;
  }
  if (result.run_id.empty() || (result.standalone && id == nullptr))
    result.run_id = random_run_id();
  // It comes to other nodes in JSON, which can hold nothing else.
  const bool is_utf8 = rendezvous::clean_text(result.run_id, result.run_id.size()) == result.run_id;
  if (!is_utf8 || !is_printable(result.run_id) || result.run_id.find('/') != std::string::npos ||
      result.run_id.size() > run_id_bytes_max) {
    throw usage_error("--rdzv-id: expected at most " + std::to_string(run_id_bytes_max) +
                      " bytes of printable characters (UTF-8) without '/', as it names the folder "
                      "of the logs");
  }
}

void decide_standalone(const SplitArguments& given, LaunchOptions& result) {
  if (result.nnodes_min > 1) {
    throw usage_error("--standalone is for one node, but " + given.find("nnodes")->source +
                      " asks for more: leave one of them out");
  }
  if (result.nnodes_max > 1)
    result.notes.push_back("--standalone: no other node can join, so --nnodes is 1");
  result.nnodes_max = 1;
  for (const char* name :
       {"rdzv-backend", "rdzv-endpoint", "master-addr", "master-port", "local-addr"}) {
    if (const auto* option = given.find(name))
      result.notes.push_back(option->source + " has no effect with --standalone");
  }
  result.endpoint_host = "127.0.0.1";
  result.endpoint_port = 0;
  result.endpoint_sources.address = given.find("standalone")->source;
  result.endpoint_sources.port = result.endpoint_sources.address;
  result.is_host = true;
}

bool asks_etcd(const SplitArguments& given, const LaunchOptions& result) {
  const auto* backend = given.find("rdzv-backend");
  return !result.standalone && backend != nullptr && backend->value.rfind("etcd", 0) == 0;
}

std::string endpoint_text(const LaunchOptions& options) {
  return rendezvous::host_and_port(options.endpoint_host, options.endpoint_port);
}

// etcd's, and not the job's, which is found there. A node alone has nobody to find it.
void decide_etcd_endpoint(const SplitArguments& given, LaunchOptions& result) {
  const GivenOption& backend = *given.find("rdzv-backend");
  const auto* endpoint = given.find("rdzv-endpoint");
  if (result.nnodes_max == 1) {
    result.notes.push_back(backend.source + " has no effect with one node");
    result.endpoint_port = 0;
    result.is_host = true;
    return;
  }
  if (endpoint == nullptr || endpoint->value.empty()) {
    throw usage_error(backend.source + " needs --rdzv-endpoint=HOST:2379, where etcd is");
  }
  const HostPort parsed = parse_endpoint(*endpoint);
  result.endpoint_host = parsed.host;
  result.endpoint_port = parsed.port.value_or(etcd_port);
  result.endpoint_sources.address = endpoint->source;
  if (parsed.port) result.endpoint_sources.port = endpoint->source;
}

// torchrun then takes the endpoint for a path, which here would be a host that is misspelt.
void refuse_file_store(const SplitArguments& given, const LaunchOptions& result) {
  const auto* conf = given.find("rdzv-conf");
  if (conf == nullptr || result.backend != RendezvousBackend::C10d) return;
  const auto words = parse_conf(*conf);
  const auto type = words.find("store_type");
  if (type == words.end() || type->second != "file") return;
  throw usage_error(conf->source +
                    ": nodes do not meet in a file; give --rdzv-endpoint=HOST:PORT of one of them, "
                    "or --rdzv-backend=etcd");
}

// Host, and the port if one was asked for. --rdzv-endpoint wins, as in torchrun.
HostPort chosen_endpoint(const SplitArguments& given, LaunchOptions& result) {
  HostPort chosen{"127.0.0.1", std::nullopt};
  const auto* endpoint = given.find("rdzv-endpoint");
  const auto* address = given.find("master-addr");
  const auto* port = given.find("master-port");
  if (address != nullptr && !address->value.empty()) {
    const HostPort parsed = parse_endpoint(*address);
    if (parsed.port) {
      throw usage_error(address->source +
                        ": expected a host alone; the port goes into --master-port");
    }
    chosen.host = parsed.host;
    result.endpoint_sources.address = address->source;
  }
  if (port != nullptr) {
    chosen.port = static_cast<std::uint16_t>(parse_count(*port, 0, 65'535));
    result.endpoint_sources.port = port->source;
  }
  if (endpoint == nullptr || endpoint->value.empty()) return chosen;

  const HostPort parsed = parse_endpoint(*endpoint);
  if (address != nullptr && parsed.host != chosen.host) {
    result.notes.push_back(address->source + " has no effect: " + endpoint->source + " wins");
  }
  if (port != nullptr && parsed.port && parsed.port != chosen.port) {
    result.notes.push_back(port->source + " has no effect: " + endpoint->source + " wins");
  }
  result.endpoint_sources.address = endpoint->source;
  if (parsed.port) result.endpoint_sources.port = endpoint->source;
  return {parsed.host, parsed.port ? parsed.port : chosen.port};
}

}  // namespace

void decide_endpoint(const SplitArguments& given, LaunchOptions& result) {
  decide_run_id(given, result);
  if (const auto* address = given.find("local-addr");
      address != nullptr && !address->value.empty()) {
    const HostPort parsed = parse_endpoint(*address);
    if (parsed.port) throw usage_error(address->source + ": expected an address without a port");
    result.local_addr = parsed.host;
  }
  if (const auto* allowed = given.find("store-allow"); allowed != nullptr) {
    result.store_allow = parse_networks(*allowed);
  }
  if (result.standalone) return decide_standalone(given, result);
  if (asks_etcd(given, result)) return decide_etcd_endpoint(given, result);

  refuse_file_store(given, result);
  const HostPort chosen = chosen_endpoint(given, result);
  const bool is_static = result.backend == RendezvousBackend::Static;
  const bool one_node = result.nnodes_max == 1;
  result.endpoint_host = chosen.host;
  const std::uint16_t usual = is_static ? static_port : c10d_port;
  // torchrun's fixed port makes two jobs of one node collide; nobody else needs to know it there.
  result.endpoint_port = chosen.port.value_or(one_node ? 0 : usual);
  if (result.endpoint_port == 0 && !one_node) {
    throw usage_error("port 0 picks a free port, which the other nodes could not know: give the " +
                      std::string("same port on every node, for example --master-port=29500"));
  }
  const bool no_endpoint =
      given.find("rdzv-endpoint") == nullptr && given.find("master-addr") == nullptr;
  if (is_static) {
    result.is_host = result.node_rank == 0;
  } else if (one_node && no_endpoint) {
    result.is_host = true;
  }
}

namespace {

// torchrun's.
bool is_etcd_key(const std::string& key) {
  return key == "protocol" || key == "cacert" || key == "cert" || key == "key";
}

void etcd_files_from(const EnvironmentLookup& environment, rendezvous::EtcdServers& etcd) {
  etcd.authority_file = environment("ETCDCTL_CACERT").value_or("");
  etcd.certificate_file = environment("ETCDCTL_CERT").value_or("");
  etcd.key_file = environment("ETCDCTL_KEY").value_or("");
}

}  // namespace

void decide_etcd(const SplitArguments& given, const EnvironmentLookup& environment,
                 LaunchOptions& result) {
  if (!asks_etcd(given, result) || result.nnodes_max == 1) return;
  if (result.takeover == false) {
    throw usage_error(given.find("rdzv-conf")->source + ": takeover=false is for " +
                      "--rdzv-backend=c10d, where one node alone can be the coordinator");
  }
  etcd_files_from(environment, result.etcd);
  std::string protocol = "http";
  if (const auto* option = given.find("rdzv-conf")) {
    for (const auto& [key, value] : parse_conf(*option)) {
      if (key == "protocol") protocol = parse_choice({value, option->source}, {"http", "https"});
      if (key == "cacert") result.etcd.authority_file = value;
      if (key == "cert") result.etcd.certificate_file = value;
      if (key == "key") result.etcd.key_file = value;
    }
  }
  result.etcd.urls = {protocol + "://" + endpoint_text(result)};
}

bool meets_in_etcd(const LaunchOptions& options) {
  if (!options.etcd.any()) return false;
  const std::string& url = options.etcd.urls.front();
  return url.substr(url.find("://") + 3) == endpoint_text(options);
}

HeartbeatPace settle_heartbeat(const HeartbeatWords& words, const HeartbeatPace& usual) {
  HeartbeatPace result{words.interval.value_or(usual.interval),
                       words.timeout.value_or(usual.timeout)};
  // For torchrun a node is lost after keep_alive_max_attempt intervals, and its heartbeat_timeout
  // limits one call: with 5 s each, its defaults, that is 15 s, and no mistake.
  const bool limits_a_call = words.attempts || result.timeout <= result.interval || !words.timeout;
  if ((words.attempts || words.interval) && limits_a_call) {
    result.lost_after = words.attempts.value_or(3);
    result.timeout = result.interval * result.lost_after;
  }
  // A timeout alone moves the interval along: three heartbeats must fit into it.
  if (!words.interval) result.interval = std::min(result.interval, result.timeout / 3);
  return result;
}

namespace {

// What does not belong to the heartbeat goes straight into `result`.
HeartbeatWords read_conf(const SplitArguments& given, const GivenOption& option,
                         LaunchOptions& result) {
  HeartbeatWords words;
  const auto conf = parse_conf(option);
  for (const auto& [key, value] : conf) {
    const auto seconds = [&, &text = value] {
      return parse_seconds(option, text, milliseconds(1));
    };
    // torchrun's names in its static and its c10d backend; the latter reads no timeout.
    if (key == "join_timeout" || (key == "timeout" && !conf.contains("join_timeout"))) {
      result.join_timeout = seconds();
    } else if (key == "timeout") {
      result.notes.push_back("--rdzv-conf timeout has no effect beside join_timeout");
    } else if (key == "last_call_timeout") {
      result.last_call_timeout = parse_seconds(option, value, milliseconds(0));
    } else if (key == "start_timeout") {
      result.start_timeout = seconds();
    } else if (key == "heartbeat_timeout") {
      words.timeout = seconds();
    } else if (key == "keep_alive_interval") {
      words.interval = seconds();
    } else if (key == "keep_alive_max_attempt") {
      words.attempts = parse_count({value, option.source}, 1, 1000);
    } else if (key == "is_host") {
      result.is_host = parse_bool(option, value);
    } else if (key == "takeover") {
      result.takeover = parse_bool(option, value);
    } else if (asks_etcd(given, result) && is_etcd_key(key)) {
      continue;  // decide_etcd()
    } else if (key == "rank") {
      result.notes.push_back("--rdzv-conf rank has no effect: use --node-rank");
    } else {
      result.notes.push_back("--rdzv-conf " + key + " has no effect");
    }
  }
  return words;
}

}  // namespace

void decide_conf(const SplitArguments& given, LaunchOptions& result) {
  const auto* option = given.find("rdzv-conf");
  if (option == nullptr) return;
  const HeartbeatWords words = read_conf(given, *option, result);
  const HeartbeatPace heartbeat =
      settle_heartbeat(words, {result.heartbeat_interval, result.heartbeat_timeout});
  if (words.timeout && heartbeat.lost_after > 0) {
    result.notes.push_back(
        "--rdzv-conf heartbeat_timeout has no effect: a node counts as lost after " +
        std::to_string(heartbeat.lost_after) + " times keep_alive_interval");
  }
  if (heartbeat.interval.count() < 1 || heartbeat.timeout <= heartbeat.interval) {
    throw usage_error(option->source +
                      ": expected heartbeat_timeout above keep_alive_interval, or "
                      "every node would count as lost");
  }
  if (heartbeat.timeout > heartbeat_timeout_max) {
    throw usage_error(option->source + ": a node would count as lost after " +
                      rendezvous::time_text(heartbeat.timeout) +
                      " of silence: expected at most 1000000 s");
  }
  result.heartbeat_interval = heartbeat.interval;
  result.heartbeat_timeout = heartbeat.timeout;
}

namespace {

// "http://host:2379,http://other:2379", as etcdctl has them in --endpoints.
std::vector<std::string> parse_urls(const GivenOption& given) {
  std::vector<std::string> urls;
  for (std::size_t begin = 0; begin <= given.value.size();) {
    const std::size_t end = std::min(given.value.find(',', begin), given.value.size());
    std::string url = given.value.substr(begin, end - begin);
    begin = end + 1;
    while (!url.empty() && url.back() == '/') url.pop_back();
    const bool plain = url.rfind("http://", 0) == 0, sealed = url.rfind("https://", 0) == 0;
    const std::string host = plain || sealed ? url.substr(plain ? 7 : 8) : "";
    // No path, and no NAME:PASSWORD@, which would stand in every message.
    if (host.empty() || host.find_first_of("/ @?#\\") != host.npos || !is_printable(host)) {
      throw usage_error(given.source +
                        ": expected a file, or etcd's servers, as http://HOST:2379 or "
                        "https://HOST:2379, with commas between several");
    }
    urls.push_back(std::move(url));
  }
  return urls;
}

}  // namespace

void decide_tie_breaker(const SplitArguments& given, const EnvironmentLookup& environment,
                        LaunchOptions& result) {
  const auto* option = given.find("tie-breaker");
  if (option == nullptr || option->value.empty()) return;
  const bool is_etcd = option->value.find("://") != option->value.npos;
  rendezvous::EtcdServers etcd;
  std::string file;
  if (is_etcd) {
    etcd.urls = parse_urls(*option);
    etcd_files_from(environment, etcd);
  } else {
    file = parse_output_file(*option);
  }
  const char* in_vain = nullptr;
  if (result.nnodes_max == 1) in_vain = "with one node";
  if (result.backend == RendezvousBackend::Static && !result.takeover) {
    in_vain = "without --rdzv-backend=c10d, or --rdzv-conf takeover=true";
  }
  if (result.takeover == false) in_vain = "with --rdzv-conf takeover=false";
  if (asks_etcd(given, result)) in_vain = "with --rdzv-backend=etcd, which is one itself";
  if (in_vain != nullptr) {
    result.notes.push_back(option->source + " has no effect " + in_vain);
    return;
  }
  result.tie_breaker = file;
  result.etcd = etcd;
}

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 32 && c != 127; });
}

}  // namespace ddprun::launcher
