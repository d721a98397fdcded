// What the doctor and its probe say to each other: a line of another machine's gives values that
// can be judged and shown, or nothing, and what was read is written as it was.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/doctor/doctor_report.h"
#include "launcher/doctor/group_findings.h"
#include "launcher/doctor/machine_findings.h"
#include "launcher/doctor/probe_message.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::launcher;
using ddprun::fuzz::require;

namespace {

// Without the mark and the end, as the other side reads it.
std::string_view inside(std::string_view line) {
  if (line.starts_with(probe_mark)) line.remove_prefix(probe_mark.size());
  return line.substr(0, line.size() - 1);
}

template <typename Value, typename Read>
std::optional<Value> comes_back(std::string_view text, Read read) {
  const std::optional<Value> value = read(text);
  if (!value) return std::nullopt;
  const std::string line = to_line(*value);
  require(line.find('\n') == line.size() - 1, "a message of several lines");
  const std::optional<Value> again = read(inside(line));
  require(again && to_line(*again) == line, "a message does not come back as it was");
  return value;
}

void judge(const MachineFacts& facts) {
  const ProbedHost one{.name = "one", .facts = facts}, two{.number = 1, .name = "two"};
  DoctorReport report{.alone = false, .hosts = {{{}, facts}, {}}};
  report.findings = examine_machine(facts, {.name = "one", .alone = false, .address = "10.0.0.1"});
  for (const Finding& each : compare_machines({one, two})) report.findings.push_back(each);
  fit_hosts(2, report.findings);
  hostfile_text(report);
  report_json(report);
  for (const char c : report_text(report, false)) {
    require(c == '\n' || static_cast<unsigned char>(c) >= 0x20, "a control character is shown");
  }
}

void judge(PairFacts pair) {
  require(std::isfinite(pair.latency_s) && std::isfinite(pair.bytes_per_s), "no number");
  pair.from = 0;
  pair.to = 1;
  examine_pairs({pair}, {"one", "two"}, 29'400);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  comes_back<ProbeHello>(text, read_probe_hello);
  comes_back<ProbeAsk>(text, read_probe_ask);
  comes_back<Listening>(text, read_listening);
  if (const auto facts = comes_back<MachineFacts>(text, read_machine_facts)) judge(*facts);
  if (const auto pair = comes_back<PairFacts>(text, read_pair_facts)) judge(*pair);
  if (const auto wall_s = read_clock(text)) require(std::isfinite(*wall_s), "no time");
  return 0;
}
