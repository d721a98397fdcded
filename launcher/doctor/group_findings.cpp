// Findings name the hosts together that they are true of: one sentence for a firewall on one host,
// and not one for each that knocks at it.
#include "launcher/doctor/group_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "launcher/doctor/machine_findings.h"
#include "rendezvous/counted.h"
#include "rendezvous/host/loopback_address.h"

namespace ddprun::launcher {
namespace {

using Level = Finding::Level;
using rendezvous::counted;
using Members = std::vector<ProbedHost>;

constexpr std::size_t names_shown = 4;

std::string rate_text(double bytes_per_s) {
  if (bytes_per_s >= 1e9) return fmt::format("{:.3g} GB/s", bytes_per_s / 1e9);
  return fmt::format("{:.3g} MB/s", bytes_per_s / 1e6);
}

// "550.54 on host-a; 535.10 on host-b, host-c"; "" where all have the same, or nothing.
std::string differences(const Members& members,
                        const std::function<std::string(const ProbedHost&)>& value) {
  std::map<std::string, std::vector<std::string>> places;
  for (const ProbedHost& member : members) {
    const std::string one = value(member);
    if (!one.empty()) places[one].push_back(member.name);
  }
  if (places.size() < 2) return "";
  std::string text;
  for (const auto& [one, names] : places) {
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", one, some_names(names));
  }
  return text;
}

// Names that mean on each machine that machine itself, and say nothing of another one.
bool means_oneself(const std::string& name) {
  return name == "localhost" || rendezvous::is_loopback_address(name);
}

class Comparison {
 public:
  explicit Comparison(const Members& members) : members_(members) {}

  Findings take();

 private:
  void amber(const std::string& what, const std::string& value, const std::string& reason,
             const std::string& remedy) {
    findings_.push_back({Level::Amber, "all hosts", what, value, reason, remedy, {}});
  }
  void green(const std::string& what, const std::string& value) {
    findings_.push_back({Level::Green, "all hosts", what, value, "", "", {}});
  }
  void compare_versions();
  void compare_secrets();
  void compare_clocks();
  void compare_gpus();
  void compare_mtus();
  void compare_places();
  void look_at_names();

  const Members& members_;
  Findings findings_;
};

void Comparison::compare_versions() {
  const std::string differ =
      differences(members_, [](const ProbedHost& member) { return member.facts.version; });
  if (differ.empty()) return green("version", members_.front().facts.version);
  amber("version", differ,
        "Nodes of different versions refuse each other when their protocols differ (exit status "
        "73).",
        "install the same one on all hosts; or take it off the PATH there and give --copy-self");
}

void Comparison::compare_secrets() {
  std::map<std::string, std::vector<std::string>> owners;
  std::vector<std::string> without;
  for (const ProbedHost& member : members_) {
    const std::string& proof = member.facts.secret_proof;
    if (proof.empty()) {
      without.push_back(member.name);
    } else {
      owners[proof].push_back(member.name);
    }
  }
  if (owners.empty()) return green("secret", "on no host; ddprun -H makes one for each job");
  if (owners.size() == 1 && without.empty()) return green("secret", "the same on all hosts");
  std::string value;
  for (const auto& [proof, names] : owners) {
    value += (value.empty() ? "" : "; another one on ") + some_names(names);
  }
  if (!without.empty()) value += "; none on " + some_names(without);
  amber("secret", "one on " + value,
        "A job that is started by hand on each host is refused (exit status 73). ddprun -H does "
        "not need it: it makes a secret for each job.",
        fmt::format("scp {}:.config/ddprun/secret to ~/.config/ddprun/ of the others, or start "
                    "jobs with -H",
                    owners.begin()->second.front()));
}

void Comparison::compare_clocks() {
  const auto by_clock = [](const ProbedHost& one, const ProbedHost& other) {
    return one.clock_ahead_s < other.clock_ahead_s;
  };
  const auto [slow, fast] = std::minmax_element(members_.begin(), members_.end(), by_clock);
  const double apart = fast->clock_ahead_s - slow->clock_ahead_s;
  const double sure = apart - slow->clock_error_s - fast->clock_error_s;
  constexpr double amber_from_s = 0.5;  // Lines of several hosts' logs no longer sort.
  constexpr double red_from_s = 300;    // Kerberos's limit, and beyond many certificates'.
  if (sure < amber_from_s) {
    return green("clocks", fmt::format("within {:.0f} ms", std::ceil(apart * 1e3)));
  }
  const std::string value =
      fmt::format("{} is {:.3g} s ahead of {}", fast->name, apart, slow->name);
  const std::string remedy =
      "start chronyd or systemd-timesyncd there; chronyc tracking tells how "
      "far it is off";
  if (sure >= red_from_s) {
    findings_.push_back({Level::Red,
                         fast->name + " -> " + slow->name,
                         "clocks",
                         value,
                         "From 5 minutes on Kerberos refuses its tickets (file servers, Slurm's "
                         "munge), and certificates may not be valid yet.",
                         remedy,
                         {fast->number, slow->number}});
    return;
  }
  amber("clocks", value,
        "ddprun compares no clocks of two hosts, but times in logs and of files on a file server "
        "mislead, and make rebuilds too much or too little.",
        remedy);
}

void Comparison::compare_gpus() {
  const std::string counts = differences(
      members_, [](const ProbedHost& member) { return counted(member.facts.gpu.count, "GPU"); });
  if (!counts.empty()) {
    amber("GPUs", counts, "Each host starts as many workers as --nproc-per-node says.",
          "--nproc-per-node gpu, or a number for each host: -H a:8,b:4 (--write-hostfile writes "
          "them)");
  }
  const std::string drivers =
      differences(members_, [](const ProbedHost& member) { return member.facts.gpu.driver; });
  if (!drivers.empty()) {
    amber("driver", drivers,
          "A program may start on one host and not on the other, or run other kernels there.",
          "install the same driver on all hosts");
  }
  const std::string libraries =
      differences(members_, [](const ProbedHost& member) { return member.facts.gpu.nccl; });
  if (libraries.empty()) return;
  amber("NCCL", libraries,
        "Ranks of different versions of NCCL do not form a communicator; PyTorch's wheels bring "
        "their own and are not meant.",
        "install the same libnccl2 on all hosts");
}

void Comparison::compare_mtus() {
  const std::string differ = differences(members_, [](const ProbedHost& member) -> std::string {
    const NetworkInterface* chosen = interface_of(member.facts, member.address);
    return chosen == nullptr || chosen->is_loopback ? "" : std::to_string(chosen->mtu);
  });
  if (differ.empty()) return;
  amber("MTU", differ,
        "Where a switch between them passes the smaller size alone, large messages are lost "
        "without a word.",
        "the same MTU on all hosts and switches: ip link set dev INTERFACE mtu N");
}

// Two names for one machine, and two machines with one address.
void Comparison::compare_places() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const ProbedHost &one = members_[j], &other = members_[i];
      if (is_same_machine(one.facts, other.facts)) {
        amber("one machine", fmt::format("{} and {} are the same", one.name, other.name),
              "Both would start workers on the same GPUs, CPUs and memory.",
              "name it once, with the workers of both: -H " + one.name + ":N");
        break;
      }
      if (one.address != other.address || rendezvous::is_loopback_address(one.address)) continue;
      findings_.push_back(
          {Level::Red,
           one.name + " -> " + other.name,
           "addresses",
           fmt::format("both are reached at {}, though they are two machines", one.address),
           "One of the two cannot be reached.",
           "give each an address of its own in -H, ~/.ssh/config or the hostfile",
           {one.number, other.number}});
    }
  }
}

// Names of the other hosts, as each host resolves them.
void Comparison::look_at_names() {
  std::map<std::string, std::vector<std::string>> lost;
  for (const ProbedHost& member : members_) {
    for (const ProbedHost& other : members_) {
      if (&other == &member || is_same_machine(other.facts, member.facts)) continue;
      if (means_oneself(other.name)) continue;
      for (std::size_t i = 1; i < member.facts.names.size(); ++i) {
        const ResolvedName& name = member.facts.names[i];
        if (name.name != other.name) continue;
        if (!name.problem.empty()) {
          lost[other.name].push_back(member.name);
        } else if (std::any_of(name.addresses.begin(), name.addresses.end(),
                               rendezvous::is_loopback_address)) {
          findings_.push_back(
              {Level::Red,
               member.name,
               "names",
               other.name + " leads to the loopback interface",
               "Whoever asks for that host there reaches itself.",
               "take the line with 127. and " + other.name + " out of /etc/hosts there",
               {member.number}});
        }
      }
    }
  }
  for (const auto& [name, where] : lost) {
    findings_.push_back({Level::Amber,
                         some_names(where),
                         "names",
                         name + " does not resolve",
                         "ddprun -H takes the address at which ssh reaches it; started by hand, "
                         "--master-addr " +
                             name + " would fail there.",
                         "add it to /etc/hosts or DNS, or use addresses",
                         {}});
  }
}

Findings Comparison::take() {
  compare_versions();
  look_at_names();
  compare_places();
  compare_mtus();
  compare_clocks();
  compare_secrets();
  compare_gpus();
  return std::move(findings_);
}

// ---- pairs ----

struct Meaning {
  std::string value, reason, remedy;
};

std::string opened_how(const std::string& ports) {
  return fmt::format(
      "firewall-cmd --add-port={0}/tcp, ufw allow {0}/tcp, or the cloud's security "
      "group: all of the hosts' private network is simplest",
      ports);
}

// `ports`: as a person says it; `range`: as a firewall takes it.
Meaning meaning_of(Reached reached, const std::string& ports, const std::string& range,
                   const std::string& words) {
  switch (reached) {
    case Reached::NoAnswer:
      return {ports + ": no answer",
              "ddprun listened there, so a firewall on the way drops the packets, or they go to "
              "another network.",
              "open it there: " + opened_how(range)};
    case Reached::Refused:
      return {ports + ": refused",
              "ddprun listened there, so a firewall refuses the connection, or the address is "
              "another machine's.",
              "compare the address with `ip -br addr` there; if it is right, open it: " +
                  opened_how(range)};
    case Reached::NoRoute:
      return {ports + ": " + words, "There is no way to that address, or a firewall says so.",
              "`ip route get ADDRESS` on the first, `ip -br addr` on the second; then " +
                  opened_how(range)};
    case Reached::NoName:
      return {ports + ": the address does not resolve (" + words + ")",
              "ssh knows the host by its configuration, others do not.",
              "name the host by an address, or add it to /etc/hosts or DNS"};
    case Reached::Stranger:
      return {ports + ": another program answers",
              "The address leads to another machine than ssh, or something else took the port.",
              "compare the address with `ip -br addr` there; `ss -ltnp` shows who has the port"};
    default:
      return {ports + ": " + words, "The system refused the connection.", "see the words"};
  }
}

class PairExamination {
 public:
  PairExamination(const std::vector<PairFacts>& pairs, const std::vector<std::string>& names,
                  int port)
      : pairs_(pairs), names_(names), port_(port) {}

  Findings take();

 private:
  struct Kind {
    int to;
    std::string value, reason, remedy, words;
    auto operator<=>(const Kind&) const = default;
  };
  const std::string& name(int host) const { return names_.at(static_cast<std::size_t>(host)); }
  void note(const PairFacts& pair, const Meaning& meaning) {
    kinds_[{pair.to, meaning.value, meaning.reason, meaning.remedy, ""}].push_back(pair.from);
  }
  void look_at(const PairFacts& pair);
  void look_at_speeds();

  const std::vector<PairFacts>& pairs_;
  const std::vector<std::string>& names_;
  int port_;
  std::map<Kind, std::vector<int>> kinds_;
  Findings findings_;
};

void PairExamination::look_at(const PairFacts& pair) {
  const auto failed = [](Reached reached) {
    return reached != Reached::Yes && reached != Reached::Untried;
  };
  const std::string port = std::to_string(port_);
  const std::string ephemeral = "the ports that workers choose";
  if (failed(pair.rendezvous) && failed(pair.ephemeral)) {
    note(pair, meaning_of(pair.ephemeral, fmt::format("port {} and {}", port, ephemeral),
                          "1024-65535", pair.words));
  } else if (failed(pair.rendezvous)) {
    Meaning meaning = meaning_of(pair.rendezvous, "port " + port, port, pair.words);
    meaning.remedy += ", or take an open one with --master-port";
    note(pair, meaning);
  } else if (failed(pair.ephemeral)) {
    // Of net.ipv4.ip_local_port_range, from which the kernel gives one to who asks for any.
    note(pair, meaning_of(pair.ephemeral, ephemeral, "32768-60999", pair.words));
  }
  if (pair.large_stalled) {
    note(pair,
         {"small messages arrive, large ones do not",
          "Packets of the interface's MTU are lost on the way (a switch, a tunnel or a "
          "virtual network with a smaller one), and no one says so: a job hangs in its first "
          "large collective.",
          "find the size that passes: ping -M do -s 1472 ADDRESS, and smaller; then ip link "
          "set dev INTERFACE mtu THAT+28 on all hosts; or sysctl net.ipv4.tcp_mtu_probing=1"});
  }
}

void PairExamination::look_at_speeds() {
  std::vector<double> rates;
  for (const PairFacts& pair : pairs_) {
    if (pair.bytes_per_s > 0) rates.push_back(pair.bytes_per_s);
  }
  if (rates.empty()) return;
  std::sort(rates.begin(), rates.end());
  const double usual = rates[rates.size() / 2];
  constexpr double slow_bytes_per_s = 30e6;  // A hundred megabytes of gradients in three seconds.
  constexpr double share = 0.25;             // Noise of so short a measurement stays above it.
  for (const PairFacts& pair : pairs_) {
    if (pair.bytes_per_s <= 0) continue;
    const bool slow = pair.bytes_per_s < slow_bytes_per_s;
    if (!slow && pair.bytes_per_s >= share * usual) continue;
    findings_.push_back(
        {Level::Amber,
         name(pair.from) + " -> " + name(pair.to),
         "bandwidth",
         rate_text(pair.bytes_per_s) +
             (slow ? "" : fmt::format(", where half of the pairs have {}", rate_text(usual))),
         "Every step waits for the slowest connection of the ring.",
         "ethtool INTERFACE shows the speed that the cable agreed on; measure again when nobody "
         "else uses the network; put the host elsewhere",
         {}});
  }
}

Findings PairExamination::take() {
  for (const PairFacts& pair : pairs_) look_at(pair);
  for (const auto& [kind, from] : kinds_) {
    std::vector<std::string> who;
    for (const int host : from) who.push_back(name(host));
    std::vector<int> hosts = from;
    hosts.insert(hosts.begin(), kind.to);
    findings_.push_back({Level::Red, some_names(who) + " -> " + name(kind.to), "connection",
                         kind.value, kind.reason, kind.remedy, hosts});
  }
  if (findings_.empty() && !pairs_.empty()) {
    findings_.push_back({Level::Green,
                         "all hosts",
                         "connections",
                         fmt::format("{} passed, on port {} and on a free one",
                                     counted(static_cast<int>(pairs_.size()), "direction"), port_),
                         "",
                         "",
                         {}});
  }
  look_at_speeds();
  return std::move(findings_);
}

}  // namespace

std::string some_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), names_shown); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > names_shown) text += fmt::format(" and {} more", names.size() - names_shown);
  return text;
}

bool is_same_machine(const MachineFacts& one, const MachineFacts& other) {
  return !one.boot_id.empty() && one.boot_id == other.boot_id && one.network == other.network;
}

Findings compare_machines(const Members& members) {
  return members.size() < 2 ? Findings{} : Comparison(members).take();
}

Findings examine_pairs(const std::vector<PairFacts>& pairs, const std::vector<std::string>& names,
                       int port) {
  return PairExamination(pairs, names, port).take();
}

std::vector<int> fit_hosts(int hosts, const Findings& findings) {
  std::set<int> left;
  for (int host = 0; host < hosts; ++host) left.insert(host);
  std::set<std::pair<int, int>> apart;
  for (const Finding& finding : findings) {
    if (finding.level != Level::Red || finding.hosts.empty()) continue;
    if (finding.hosts.size() == 1) left.erase(finding.hosts.front());
    for (std::size_t i = 1; i < finding.hosts.size(); ++i) {
      apart.emplace(finding.hosts.front(), finding.hosts[i]);
    }
  }
  for (;;) {
    std::map<int, int> conflicts;
    for (const auto& [one, other] : apart) {
      if (left.count(one) == 0 || left.count(other) == 0) continue;
      ++conflicts[one];
      ++conflicts[other];
    }
    if (conflicts.empty()) return {left.begin(), left.end()};
    // Of two the later one goes: the first of the list is where node 0 is meant to be.
    const auto worst = std::max_element(
        conflicts.begin(), conflicts.end(), [](const auto& one, const auto& other) {
          return std::pair(one.second, one.first) < std::pair(other.second, other.first);
        });
    left.erase(worst->first);
  }
}

}  // namespace ddprun::launcher
