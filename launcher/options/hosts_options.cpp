// The one place that knows which options belong to the job as a whole, which to each node, and
// which to the launcher that was typed.
#include "launcher/options/hosts_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "launcher/hosts/chosen_environment.h"
#include "launcher/hosts/remote_command.h"
#include "launcher/options/endpoint_options.h"
#include "launcher/options/table.h"
#include "launcher/options/values.h"
#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t hostfile_bytes_max = 16 << 20;
static_assert(workers_of_host_max == rendezvous::workers_per_node_limit);

std::string read_hostfile(const GivenOption& given) {
  std::ifstream file(given.value, std::ios::binary);
  if (!file) throw usage_error(given.source + ": cannot read that file; does it exist?");
  std::string text(hostfile_bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.gcount() == 0 && !file.eof())) {
    throw usage_error(given.source + ": cannot read that file");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > hostfile_bytes_max) throw usage_error(given.source + ": that is no hostfile");
  return text;
}

class Hosts {
 public:
  Hosts(SplitArguments& split, LaunchOptions& result) : split_(split), result_(result) {}

  void take();

 private:
  const GivenOption* find(const char* name) const { return split_.find(name); }
  void read_list();
  void read_wishes();
  void refuse_what_contradicts() const;
  void decide_nodes();
  void decide_workers();
  void keep_node_arguments();

  SplitArguments& split_;
  LaunchOptions& result_;
  OverSsh over_ssh_;
};

void Hosts::read_list() {
  const GivenOption* named = find("hosts");
  const GivenOption* file = find("hostfile");
  if (named != nullptr && file != nullptr) {
    throw usage_error(named->source + " and " + file->source +
                      " both say where to run: give one of them");
  }
  try {
    HostList list = named != nullptr ? parse_host_list(named->value)
                                     : parse_hostfile(read_hostfile(*file), file->value);
    choose_environment(list.variables, {});
    over_ssh_.hosts = std::move(list.hosts);
    // Before those of the command line, which win.
    over_ssh_.exports.insert(over_ssh_.exports.begin(), list.variables.begin(),
                             list.variables.end());
  } catch (const HostListError& error) {
    throw usage_error((named != nullptr ? named : file)->source + ": " + error.what());
  } catch (const std::invalid_argument& error) {  // HostListError is none.
    throw usage_error(file->source + ", in \"envs\": " + error.what());
  }
}

// Checked with and without hosts: a word that means nothing is a mistake in any case.
void Hosts::read_wishes() {
  if (const GivenOption* exports = find("export")) {
    std::istringstream lines(exports->value);
    for (std::string line; std::getline(lines, line, given_again);) {
      for (std::string& wish : split_wishes(line)) over_ssh_.exports.push_back(std::move(wish));
    }
    try {
      choose_environment(over_ssh_.exports, {});
    } catch (const std::invalid_argument& error) {
      throw usage_error(exports->source + ": " + error.what());
    }
  }
  if (const GivenOption* options = find("ssh-options")) {
    std::string words = options->value;
    for (const char between : {given_again, '\n'}) {
      std::replace(words.begin(), words.end(), between, ' ');
    }
    if (!is_printable(words)) throw usage_error(options->source + ": expected options of ssh");
    try {
      over_ssh_.ssh_options = split_words(words);
    } catch (const std::invalid_argument& error) {
      throw usage_error(options->source + ": " + error.what());
    }
  }
  const GivenOption* copy = find("copy-self");
  over_ssh_.copy_self = copy != nullptr && copy->value != "0";
}

void Hosts::refuse_what_contradicts() const {
  for (const char* name : {"node-rank", "local-addr"}) {
    const GivenOption* given = find(name);
    if (given == nullptr) continue;
    throw usage_error(
        given->source +
        " is for one node, but with --hosts this command starts all of them: leave it "
        "out");
  }
  const GivenOption* alone = find("standalone");
  if (alone != nullptr && alone->value != "0") {
    throw usage_error("--standalone is for one node on this machine: leave it or --hosts out");
  }
}

void Hosts::decide_nodes() {
  const std::string count = std::to_string(over_ssh_.hosts.size());
  const GivenOption* nodes = find("nnodes");
  if (nodes != nullptr) {
    const NodeRange range = parse_nnodes(*nodes);
    if (std::to_string(range.max) != count) {
      throw usage_error(nodes->source + ", but there are " + count +
                        " hosts, of which each is a node: leave --nnodes out" +
                        (range.min != range.max ? ", or give MIN:" + count : ""));
    }
  } else {
    split_.options["nnodes"] = {count, "the number of hosts"};
  }
  // Two jobs of one user on one host must not take each other's nodes.
  if (find("rdzv-id") == nullptr) split_.options["rdzv-id"] = {"", "a random one"};
}

void Hosts::decide_workers() {
  const GivenOption* workers = find("nproc-per-node");
  const std::string given = workers != nullptr ? workers->value : "1";
  // MIN:MAX, and MAX alone, which a host's own number takes the place of.
  const std::size_t colon = given.find(':');
  const std::string usual = colon == std::string::npos ? given : given.substr(colon + 1);
  int least = 0;
  if (colon != std::string::npos) {
    least = parse_count({given.substr(0, colon), workers->source}, 1, workers_of_host_max);
  }
  const auto with_least = [&](int number) {
    return least == 0 ? std::to_string(number)
                      : fmt::format("{}:{}", std::min(least, number), number);
  };
  int most = 1;
  for (const Host& host : over_ssh_.hosts) {
    over_ssh_.workers.push_back(host.workers ? with_least(*host.workers) : given);
    most = std::max(most, host.workers.value_or(1));
  }
  // "gpu" counts those of the host, and not ours: what cannot be known here is checked there.
  const bool is_number =
      !usual.empty() && usual.find_first_not_of("0123456789") == std::string::npos;
  if (is_number) {
    const int number =
        parse_count({usual, workers != nullptr ? workers->source : ""}, 1, workers_of_host_max);
    if (least > number) {
      throw usage_error(workers->source + ": expected MIN:MAX with a MIN from 1 to MAX");
    }
    most = std::max(most, number);
  } else if (workers != nullptr) {
    parse_choice({usual, workers->source}, {"auto", "cpu", "gpu"});
    most = workers_of_host_max;
  }
  split_.options["nproc-per-node"] = {with_least(most), "the hosts' workers"};
}

void Hosts::keep_node_arguments() {
  static const std::set<std::string> ours = {"nnodes",    "nproc-per-node", "rdzv-id",
                                             "report",    "secret-file",    "dry-run",
                                             "node-rank", "metrics-file"};
  for (const auto& [name, given] : split_.options) {
    if (ours.count(name) != 0) continue;
    if (!option_row(name).is_flag()) {
      over_ssh_.node_arguments.push_back("--" + name + "=" + given.value);
    } else if (given.value != "0") {
      over_ssh_.node_arguments.push_back("--" + name);
    }
  }
}

void Hosts::take() {
  read_wishes();
  const bool has_hosts = find("hosts") != nullptr || find("hostfile") != nullptr;
  if (has_hosts) {
    read_list();
    refuse_what_contradicts();
    decide_nodes();
  }
  for (const char* name : {"export", "ssh-options", "copy-self"}) {
    const GivenOption* given = find(name);
    if (given == nullptr || given->value == "0" || has_hosts) continue;
    result_.notes.push_back(given->source + " has no effect without --hosts or --hostfile");
  }
  if (!has_hosts) return;
  for (const char* name : {"hosts", "hostfile", "export", "ssh-options", "copy-self"}) {
    split_.options.erase(name);
  }
  const GivenOption* endpoint = find("rdzv-endpoint");
  const GivenOption* address = find("master-addr");
  const bool has_endpoint = endpoint != nullptr && !endpoint->value.empty();
  over_ssh_.endpoint_given = has_endpoint || (address != nullptr && !address->value.empty());
  over_ssh_.port_given = find("master-port") != nullptr ||
                         (has_endpoint && parse_endpoint(*endpoint).port.has_value());
  keep_node_arguments();
  decide_workers();
  result_.over_ssh = std::move(over_ssh_);
}

}  // namespace

void take_hosts(SplitArguments& split, LaunchOptions& result) { Hosts(split, result).take(); }

}  // namespace ddprun::launcher
