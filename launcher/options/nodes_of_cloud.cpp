// Names and meanings are from the platforms' own pages and sources.
#include "launcher/options/nodes_of_cloud.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/options/platform_words.h"
#include "rendezvous/json/json_text.h"

namespace ddprun::launcher {
namespace {

using HostNames = std::vector<std::string>;

// Those that have a variable for each value. A platform whose pods are made by another one is the
// nearer of the two: PyTorchJob's and Volcano's pods may have a completion index as well.
struct NodeRow {
  const char* name;
  const char* shown;
  const char* rank;
  const char* nodes;
  const char* address;  // Of the first node, or of all, a line each.
  const char* port;
};
constexpr std::array node_rows = {
    NodeRow{"LeaderWorkerSet", "LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE",
            "LWS_LEADER_ADDRESS", ""},
    NodeRow{"AWS Batch", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NODE_INDEX",
            "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", ""},
    NodeRow{"SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES",
            "SKYPILOT_NODE_IPS", ""},
    // PET_NNODES and PET_NODE_RANK are options; its older versions set no PET_MASTER_ADDR.
    NodeRow{"PyTorchJob", "PET_NNODES", "PET_NODE_RANK", "PET_NNODES", "MASTER_ADDR",
            "MASTER_PORT"},
};

void say(Platform& platform, const Variables& variables, const char* option, const char* variable) {
  if (variables.has(variable)) platform.says[option] = variables.given(variable);
}

Platform read_row(const NodeRow& row, const Surroundings& around) {
  const Variables variables(around.environment);
  Platform platform;
  if (!variables.has(row.shown)) return platform;
  if (row.port[0] != '\0' && !variables.has(row.address)) return platform;
  platform.name = row.name;
  platform.shown = variables.shown(row.shown);
  platform.other_count = "start as many nodes";
  say(platform, variables, "nnodes", row.nodes);
  say(platform, variables, "node-rank", row.rank);
  say(platform, variables, "master-addr", row.address);
  say(platform, variables, "master-port", row.port);
  const auto address = platform.says.find("master-addr");
  if (address != platform.says.end()) {
    std::string& hosts = address->second.value;
    const std::size_t first_end = hosts.find('\n');
    if (first_end != hosts.npos) {
      hosts.resize(first_end);
      address->second.source = std::string(row.address) + "=" + hosts + "...";
    }
  } else if (variables.number(row.rank) == 0 && !around.own_host.empty()) {
    // AWS Batch tells the main node's address to all others alone.
    platform.says["master-addr"] = {around.own_host, variables.shown(row.rank)};
  }
  return platform;
}

// Of rank in `hosts`, where this host is one of them.
std::optional<std::size_t> place_of(const std::string& own_host, const HostNames& hosts) {
  const auto first_label = [](const std::string& name) { return name.substr(0, name.find('.')); };
  for (const bool short_names : {false, true}) {
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      if (hosts[i] == own_host) return i;
      if (short_names && first_label(hosts[i]) == first_label(own_host)) return i;
    }
  }
  return std::nullopt;
}

void say_hosts(Platform& platform, const HostNames& hosts, const std::string& own_host,
               const std::string& source, const std::string& own_source) {
  platform.other_count = "start as many nodes";
  platform.says["nnodes"] = {std::to_string(hosts.size()), source};
  platform.says["master-addr"] = {hosts.front(), source};
  if (const auto place = place_of(own_host, hosts)) {
    platform.says["node-rank"] = {std::to_string(*place), own_source};
  } else {
    platform.missing["node-rank"] =
        "this host, " + own_host + ", is not in " + source + ": give --node-rank";
  }
}

// What SageMaker's own image sets, else the file that it gives to every image.
Platform read_sagemaker(const Surroundings& around) {
  const Variables variables(around.environment);
  const char* const file = "/opt/ml/input/config/resourceconfig.json";
  const bool by_variable = variables.has("SM_HOSTS");
  Platform platform;
  if (!by_variable && !variables.has("TRAINING_JOB_NAME")) return platform;
  using nlohmann::json;
  json hosts, config;
  if (by_variable) {
    hosts = rendezvous::json_of(variables.text("SM_HOSTS"));
    config["current_host"] = variables.text("SM_CURRENT_HOST");
  } else {
    config = rendezvous::json_of(around.file(file));
    if (config.is_object()) hosts = config["hosts"];
  }
  const std::string source = by_variable ? variables.shown("SM_HOSTS") : file;
  HostNames names;
  if (hosts.is_array()) {
    for (const json& host : hosts) {
      if (host.is_string() && !host.get_ref<const std::string&>().empty()) names.push_back(host);
    }
  }
  if (names.empty()) {
    if (by_variable) platform.rejected.push_back(source + ": no list of hosts as JSON");
    return platform;
  }
  platform.name = "SageMaker";
  platform.shown = source;
  const bool tells_own = config.contains("current_host") && config["current_host"].is_string();
  const std::string own = tells_own ? config["current_host"].get<std::string>() : "";
  say_hosts(platform, names, own.empty() ? around.own_host : own, source,
            by_variable ? variables.shown("SM_CURRENT_HOST") : source);
  return platform;
}

// Volcano tells the hosts of each task in a variable of its own, and to which task a pod belongs by
// the pod's name alone: JOB-TASK-INDEX.
std::string variable_of_task(const Variables& variables, const std::string& own_host) {
  const std::string tail = "-" + variables.text("VC_TASK_INDEX");
  const std::size_t size = own_host.size() - std::min(own_host.size(), tail.size());
  if (own_host.substr(size) != tail) return "";
  const std::string name = own_host.substr(0, size);
  for (std::size_t dash = name.find('-'); dash != name.npos; dash = name.find('-', dash + 1)) {
    std::string variable = "VC_" + name.substr(dash + 1) + "_HOSTS";
    for (char& letter : variable) {
      letter =
          letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    }
    if (variables.has(variable)) return variable;
  }
  return "";
}

Platform read_volcano(const Surroundings& around) {
  const Variables variables(around.environment);
  Platform platform;
  if (!variables.has("VC_TASK_INDEX")) return platform;
  platform.name = "Volcano";
  platform.shown = variables.shown("VC_TASK_INDEX");
  // Its pytorch plugin counts pods, over all tasks.
  if (variables.has("MASTER_ADDR") && variables.has("RANK") && variables.has("WORLD_SIZE")) {
    platform.other_count = "start as many nodes";
    say(platform, variables, "nnodes", "WORLD_SIZE");
    say(platform, variables, "node-rank", "RANK");
    say(platform, variables, "master-addr", "MASTER_ADDR");
    say(platform, variables, "master-port", "MASTER_PORT");
    return platform;
  }
  const std::string variable = variable_of_task(variables, around.own_host);
  HostNames hosts;
  std::istringstream list(variables.text(variable));
  for (std::string host; std::getline(list, host, ',');) {
    if (!host.empty()) hosts.push_back(host);
  }
  if (hosts.empty()) {
    platform.missing["nnodes"] =
        "Volcano does not say how many pods there are: add its plugin svc or pytorch to the job, "
        "or "
        "set PET_NNODES and PET_MASTER_ADDR";
    return platform;
  }
  say_hosts(platform, hosts, around.own_host, variables.shown(variable),
            variables.shown("VC_TASK_INDEX"));
  platform.says["node-rank"] = variables.given("VC_TASK_INDEX");
  platform.missing.erase("node-rank");
  return platform;
}

// The name of pod 0, by the line that the kubelet writes about this pod: ADDRESS FULL_NAME NAME. It
// has a full name where the pod has a subdomain, which is what makes pod 0's resolve.
std::string pod_zero(const Surroundings& around) {
  std::istringstream lines(around.file("/etc/hosts"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string address, full, name;
    if (!(words >> address >> full >> name) || name != around.own_host) continue;
    const std::size_t dash = name.rfind('-');
    const bool dotted = full.rfind(name + ".", 0) == 0;
    if (dash == name.npos || !dotted || !platform_number(name.substr(dash + 1))) continue;
    return name.substr(0, dash) + "-0" + full.substr(name.size());
  }
  return "";
}

Platform read_indexed_job(const Surroundings& around) {
  const Variables variables(around.environment);
  const char* const index = "JOB_COMPLETION_INDEX";
  Platform platform;
  if (!variables.has(index)) return platform;
  platform.name = "an indexed Job";
  platform.shown = variables.shown(index);
  say(platform, variables, "node-rank", index);
  platform.missing["nnodes"] = "a pod of an indexed Job (" + platform.shown +
                               ") is not told how many there are: set " +
                               "PET_NNODES to its completions";
  const std::string head = pod_zero(around);
  if (!head.empty()) {
    platform.says["master-addr"] = {head, "/etc/hosts"};
  } else {
    platform.missing["master-addr"] =
        "this pod has no subdomain, by which pod 0 has a name: add a headless Service and "
        "subdomain, or set PET_MASTER_ADDR";
  }
  return platform;
}

// The hosts of a list, each once, in its order.
HostNames hosts_in(const std::string& text) {
  std::istringstream words(text);
  HostNames hosts;
  for (std::string host; words >> host;) {
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

// A script of theirs runs on the first host, and starts the others by itself (pbsdsh, blaunch,
// ssh), with the same variables: one cannot tell from these whether it did.
Platform of_several_hosts(const std::string& name, const std::string& shown, const HostNames& hosts,
                          const std::string& hostfile, const Surroundings& around) {
  Platform platform;
  if (hosts.size() < 2) return platform;
  platform.name = name;
  platform.shown = shown;
  say_hosts(platform, hosts, around.own_host, shown, "the place of " + around.own_host + " in it");
  platform.misfit = name + " has " + std::to_string(hosts.size()) + " hosts (" + shown + ")";
  platform.remedy = "--hostfile " + hostfile + " starts all of them over ssh; where you have " +
                    "started ddprun on each, give --nnodes " + std::to_string(hosts.size());
  platform.nodes_settle_misfit = true;
  return platform;
}

// A container that was not given the list has the variable all the same.
Platform without_list(const Variables& variables, const char* list) {
  Platform platform;
  const std::string found = variables.shown(list);
  platform.rejected.push_back(found + ": that file cannot be read, or is empty");
  platform.notes.push_back(found +
                           " cannot be read, or is empty, and so this is a job of one node: "
                           "for several give --nnodes, --node-rank and --master-addr");
  return platform;
}

void say_port(Platform& platform, const Variables& variables, const char* job) {
  const std::string text = variables.text(job);
  const auto number = platform_number(text.substr(0, text.find_first_of(".[")));
  if (!number) return;
  platform.says["master-port"] = {std::to_string(port_of_job(*number, 0)), variables.shown(job)};
}

}  // namespace

Platform read_cloud(const Surroundings& around) {
  for (const NodeRow& row : node_rows) {
    Platform platform = read_row(row, around);
    if (platform.is_here()) return platform;
  }
  Platform sagemaker = read_sagemaker(around);
  if (sagemaker.is_here()) return sagemaker;
  Platform volcano = read_volcano(around);
  Platform platform = volcano.is_here() ? volcano : read_indexed_job(around);
  platform.rejected.insert(platform.rejected.end(), sagemaker.rejected.begin(),
                           sagemaker.rejected.end());
  return platform;
}

Platform read_batch_system(const Surroundings& around) {
  const Variables variables(around.environment);
  if (variables.has("LSB_JOBID")) {
    // LSB_HOSTS is not set where it would be too long.
    const HostNames listed = hosts_in(variables.text("LSB_HOSTS"));
    const char* const list = listed.empty() ? "LSB_DJOB_HOSTFILE" : "LSB_HOSTS";
    const HostNames hosts = listed.empty() ? hosts_in(around.file(variables.text(list))) : listed;
    if (hosts.empty()) return variables.has(list) ? without_list(variables, list) : Platform{};
    Platform platform = of_several_hosts("LSF's job", variables.shown(list), hosts,
                                         "\"$LSB_DJOB_HOSTFILE\"", around);
    if (platform.is_here()) say_port(platform, variables, "LSB_JOBID");
    return platform;
  }
  if (!variables.has("PBS_NODEFILE")) return {};
  const HostNames hosts = hosts_in(around.file(variables.text("PBS_NODEFILE")));
  if (hosts.empty()) return without_list(variables, "PBS_NODEFILE");
  Platform platform = of_several_hosts("PBS's job", variables.shown("PBS_NODEFILE"), hosts,
                                       "\"$PBS_NODEFILE\"", around);
  if (platform.is_here()) say_port(platform, variables, "PBS_JOBID");
  return platform;
}

}  // namespace ddprun::launcher
