// Bad news first, each with its remedy; good news in as few lines as they fit in.
#include "launcher/doctor/doctor_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "command_line/wrapped.h"
#include "launcher/doctor/group_findings.h"
#include "launcher/doctor/machine_findings.h"
#include "launcher/doctor/probe_message.h"
#include "launcher/output/color.h"
#include "rendezvous/counted.h"
#include "rendezvous/json/json_text.h"

namespace ddprun::launcher {
namespace {

using Level = Finding::Level;
using rendezvous::counted;

constexpr std::size_t columns = 80;
constexpr std::size_t indent = 7;  // Behind the level's word.
constexpr std::size_t pairs_shown = 12;
constexpr int green_color = 64;  // One of the colours of ranks, which show on black and on white.

const char* word_of(Level level) {
  switch (level) {
    case Level::Red:
      return "RED";
    case Level::Amber:
      return "AMBER";
    case Level::Green:
      break;
  }
  return "green";
}

int color_of(Level level) {
  if (level == Level::Green) return green_color;
  return line_color(level == Level::Red ? LineKind::Error : LineKind::Warning);
}

class ReportText {
 public:
  ReportText(const DoctorReport& report, bool colors) : report_(report), colors_(colors) {}

  std::string text();

 private:
  void head();
  void bad(const Finding& finding);
  void good();
  void good_of(const std::string& where);
  void speeds();
  void verdict();
  void block();
  // The first line begins with the level's word.
  void add(Level level, const std::string& content);
  int count(Level level) const {
    return static_cast<int>(
        std::count_if(report_.findings.begin(), report_.findings.end(),
                      [&](const Finding& finding) { return finding.level == level; }));
  }
  const std::string& name(int host) const {
    return report_.hosts.at(static_cast<std::size_t>(host)).host.name;
  }
  std::string pair_line(const PairFacts& pair) const;

  const DoctorReport& report_;
  const bool colors_;
  std::string text_;
};

void ReportText::add(Level level, const std::string& content) {
  std::string lines = command_line::wrapped(content, indent, columns);
  const std::string word = word_of(level);
  lines.replace(0, word.size(), colors_ ? colored(word, color_of(level)) : word);
  text_ += lines;
}

void ReportText::head() {
  const int hosts = static_cast<int>(report_.hosts.size());
  if (report_.alone) {
    text_ += fmt::format("ddprun doctor: {} alone; -H a,b looks at several hosts\n", name(0));
  } else {
    text_ += fmt::format("ddprun doctor: {}, {} measured{}\n", counted(hosts, "host"),
                         counted(static_cast<int>(report_.pairs.size()), "direction"),
                         report_.is_sample ? " (each host's neighbours and a sample: all pairs of "
                                             "more than 16 would take minutes)"
                                           : "");
  }
  if (!report_.platform.empty()) text_ += report_.platform;
  text_ += "\n";
}

void ReportText::bad(const Finding& finding) {
  add(finding.level, fmt::format("{}: {}: {}", finding.where, finding.what, finding.value));
  text_ += command_line::wrapped(finding.reason, indent, columns);
  text_ += command_line::wrapped("do: " + finding.remedy, indent, columns);
}

void ReportText::good_of(const std::string& where) {
  std::string content;
  for (const Finding& finding : report_.findings) {
    if (finding.level != Level::Green || finding.where != where) continue;
    content += (content.empty() ? where + ": " : "; ") + finding.what + " " + finding.value;
  }
  if (!content.empty()) add(Level::Green, content);
}

void ReportText::good() {
  std::vector<std::string> places;
  for (const Finding& finding : report_.findings) {
    const bool known = std::find(places.begin(), places.end(), finding.where) != places.end();
    if (finding.level == Level::Green && !known) places.push_back(finding.where);
  }
  for (const std::string& where : places) good_of(where);
}

std::string ReportText::pair_line(const PairFacts& pair) const {
  return fmt::format("  {} -> {}  {:.3g} MB/s  {:.3g} ms\n", name(pair.from), name(pair.to),
                     pair.bytes_per_s / 1e6, pair.latency_s * 1e3);
}

// Of many pairs the slowest ones.
void ReportText::speeds() {
  std::vector<PairFacts> measured;
  for (const PairFacts& pair : report_.pairs) {
    if (pair.bytes_per_s > 0) measured.push_back(pair);
  }
  if (measured.empty()) return;
  const bool all = measured.size() <= pairs_shown;
  text_ += all ? "\nbandwidth of one connection, and a round trip\n"
               : fmt::format(
                     "\nbandwidth of one connection, and a round trip: the slowest {} of "
                     "{}\n",
                     pairs_shown, measured.size());
  if (!all) {
    std::sort(measured.begin(), measured.end(), [](const PairFacts& one, const PairFacts& other) {
      return one.bytes_per_s < other.bytes_per_s;
    });
    measured.resize(pairs_shown);
  }
  for (const PairFacts& pair : measured) text_ += pair_line(pair);
}

void ReportText::verdict() {
  const int reds = count(Level::Red), ambers = count(Level::Amber);
  text_ += "\n";
  if (reds > 0) {
    text_ += fmt::format("{} red, {} amber: a job would fail or hang until the red is mended\n",
                         reds, ambers);
  } else if (ambers > 0) {
    text_ +=
        fmt::format("no red, {} amber: a job can run; what is amber may cost time later\n", ambers);
  } else {
    text_ += "all green\n";
  }
}

std::string machine_line(const ExaminedHost& host) {
  if (!host.facts) return host.host.name + ": could not be asked";
  const MachineFacts& facts = *host.facts;
  const GpuFacts& gpu = facts.gpu;
  std::string line = fmt::format(
      "{}: {}, {}, {} free, {}", host.host.name, facts.kernel, counted(facts.cpus, "CPU"),
      size_text(std::min(facts.memory_available, facts.cgroup_memory_max)),
      gpu.count == 0 ? "no GPU" : counted(gpu.count, "GPU"));
  const std::pair<const char*, const std::string&> versions[] = {
      {"driver", gpu.driver}, {"CUDA", gpu.cuda}, {"NCCL", gpu.nccl}};
  for (const auto& [what, version] : versions) {
    if (!version.empty()) line += fmt::format(", {} {}", what, version);
  }
  line += fmt::format(", /dev/shm {}, {}", size_text(facts.shared_memory.bytes), facts.version);
  return line;
}

std::string short_line(const Finding& finding) {
  return fmt::format("{} {}: {}: {}", word_of(finding.level), finding.where, finding.what,
                     finding.value);
}

void ReportText::block() {
  text_ += "\nTo paste into an issue (it holds no secret):\n```text\n";
  text_ += command_line::wrapped(report_.version, 0, columns);
  for (const Finding& finding : report_.findings) {
    if (finding.level == Level::Green) continue;
    text_ += command_line::wrapped(short_line(finding), 0, columns);
  }
  constexpr std::size_t hosts_shown = 8;
  for (std::size_t i = 0; i < std::min(hosts_shown, report_.hosts.size()); ++i) {
    text_ += command_line::wrapped(machine_line(report_.hosts[i]), 0, columns);
  }
  if (report_.hosts.size() > hosts_shown) {
    text_ += fmt::format("and {} more\n", report_.hosts.size() - hosts_shown);
  }
  text_ += "```\n";
}

std::string ReportText::text() {
  head();
  for (const Level level : {Level::Red, Level::Amber}) {
    for (const Finding& finding : report_.findings) {
      if (finding.level == level) bad(finding);
    }
  }
  good();
  speeds();
  verdict();
  block();
  return text_;
}

const char* json_word(Level level) {
  constexpr std::array<const char*, 3> words = {"green", "amber", "red"};
  return words[static_cast<std::size_t>(level)];
}

}  // namespace

std::string report_text(const DoctorReport& report, bool colors) {
  return ReportText(report, colors).text();
}

std::string report_brief(const DoctorReport& report) {
  std::string text;
  for (const Finding& finding : report.findings) {
    if (finding.level == Level::Red) text += short_line(finding) + "\n";
  }
  return text;
}

std::string report_json(const DoctorReport& report) {
  using Json = nlohmann::ordered_json;
  constexpr std::array<const char*, 8> reached = {"not tried", "yes",     "refused",  "no answer",
                                                  "no route",  "no name", "stranger", "failed"};
  const auto word = [&](Reached one) { return reached[static_cast<std::size_t>(one)]; };
  const std::vector<int> fit = fit_hosts(static_cast<int>(report.hosts.size()), report.findings);
  Json json{{"level", json_word(worst_of(report.findings))},
            {"version", report.version},
            {"port", report.port},
            {"is_sample", report.is_sample}};
  json["hosts"] = Json::array();
  for (std::size_t i = 0; i < report.hosts.size(); ++i) {
    const ExaminedHost& host = report.hosts[i];
    Json one{{"name", host.host.name},
             {"fit", std::binary_search(fit.begin(), fit.end(), static_cast<int>(i))},
             {"slots", host.facts ? host.facts->slots : 0}};
    if (host.facts) one["facts"] = rendezvous::ordered_json_of(facts_json(*host.facts));
    json["hosts"].push_back(std::move(one));
  }
  json["pairs"] = Json::array();
  for (const PairFacts& pair : report.pairs) {
    json["pairs"].push_back(
        {{"from", report.hosts.at(static_cast<std::size_t>(pair.from)).host.name},
         {"to", report.hosts.at(static_cast<std::size_t>(pair.to)).host.name},
         {"address", pair.address},
         {"rendezvous", word(pair.rendezvous)},
         {"ephemeral", word(pair.ephemeral)},
         {"large_stalled", pair.large_stalled},
         {"bytes_per_s", pair.bytes_per_s},
         {"latency_s", pair.latency_s}});
  }
  json["findings"] = Json::array();
  for (const Finding& finding : report.findings) {
    json["findings"].push_back({{"level", json_word(finding.level)},
                                {"where", finding.where},
                                {"what", finding.what},
                                {"value", finding.value},
                                {"reason", finding.reason},
                                {"remedy", finding.remedy}});
  }
  return rendezvous::json_page(json) + "\n";
}

std::string hostfile_text(const DoctorReport& report) {
  const std::vector<int> fit = fit_hosts(static_cast<int>(report.hosts.size()), report.findings);
  if (fit.empty()) return "";
  const auto at = [&](int number) -> const ExaminedHost& {
    return report.hosts[static_cast<std::size_t>(number)];
  };
  const bool has_addresses = std::any_of(
      fit.begin(), fit.end(), [&](int number) { return !at(number).host.addresses.empty(); });
  if (has_addresses) {  // For which lines of text have no place.
    auto list = nlohmann::ordered_json::array();
    for (const int number : fit) {
      const ExaminedHost& host = at(number);
      nlohmann::ordered_json one{{"ssh", host.host.login},
                                 {"slots", host.facts ? host.facts->slots : 1}};
      if (!host.host.addresses.empty()) one["ips"] = host.host.addresses;
      list.push_back(std::move(one));
    }
    return rendezvous::json_page(list) + "\n";
  }
  std::string text = "# Written by ddprun doctor; for ddprun --hostfile.\n";
  for (std::size_t i = 0; i < report.hosts.size(); ++i) {
    const ExaminedHost& host = report.hosts[i];
    if (std::binary_search(fit.begin(), fit.end(), static_cast<int>(i)) && host.facts) {
      text += fmt::format("{} slots={}\n", host.host.login, host.facts->slots);
    } else {
      text += fmt::format("# left out: {}\n", host.host.login);
    }
  }
  return text;
}

}  // namespace ddprun::launcher
