// What the doctor and its probes say: messages between them, hostile ones too, the command line,
// and the report as a person, a program and a launcher read it.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/doctor/doctor_options.h"
#include "launcher/doctor/doctor_report.h"
#include "launcher/doctor/probe_message.h"
#include "launcher/hosts/host_list.h"
#include "tests/launcher/doctor/healthy_machine.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace ddprun::testing;
using Level = Finding::Level;

namespace {

std::string unmarked(const std::string& line) {
  REQUIRE(line.rfind(probe_mark, 0) == 0);
  REQUIRE(line.back() == '\n');
  return line.substr(probe_mark.size(), line.size() - probe_mark.size() - 1);
}

DoctorReport two_hosts() {
  DoctorReport report;
  report.version = "ddprun 1.0 (abc)";
  report.alone = false;
  report.port = 29'500;
  for (int i = 0; i < 2; ++i) {
    const std::string name = i == 0 ? "host-a" : "host-b";
    report.hosts.push_back({{"me@" + name, name, {}, {}}, healthy_machine(name, i)});
  }
  report.pairs = {{0, 1, "10.0.0.2", Reached::Yes, Reached::NoAnswer, "no answer", false, 1e-4, 0},
                  {1, 0, "10.0.0.1", Reached::Yes, Reached::Yes, "", false, 1e-4, 2.5e8}};
  report.findings = {
      {Level::Green, "host-a", "loopback", "127.0.0.1 answers", "", "", {0}},
      {Level::Amber, "host-b", "/dev/shm", "64 MiB", "Too small.", "docker run --shm-size", {1}},
      {Level::Red,
       "host-a -> host-b",
       "connection",
       "port 29500: no answer",
       "A firewall is in between.",
       "open it",
       {1, 0}},
      {Level::Green, "host-a", "CPUs", "8", "", "", {0}}};
  return report;
}

std::size_t widest(const std::string& text) {
  std::istringstream lines(text);
  std::size_t width = 0;
  for (std::string line; std::getline(lines, line);) width = std::max(width, line.size());
  return width;
}

DoctorOptions parsed(const std::vector<std::string>& words) {
  return parse_doctor_options(words, [](const std::string&) { return std::nullopt; });
}

}  // namespace

TEST_CASE("17.3: what a probe says arrives as it was said", "[doctor]") {
  MachineFacts facts = healthy_machine("host-a", 0);
  facts.cgroup_cpus = 1.5;
  facts.names[0].problem = "caf\xe9";
  const auto read = read_machine_facts(unmarked(to_line(facts)));
  REQUIRE(read);
  CHECK(read->host_name == "host-a");
  CHECK(read->cgroup_cpus == 1.5);
  CHECK(read->memory_available == facts.memory_available);
  CHECK(read->cgroup_memory_max == no_limit);
  REQUIRE(read->interfaces.size() == 4);
  CHECK(read->interfaces[1].addresses == std::vector<std::string>{"10.0.0.1"});
  CHECK(read->interfaces[1].mtu == 1'500);
  CHECK(read->gpu.nccl == "2.21.5");
  CHECK(read->names[0].problem == "caf?");
  CHECK(facts_json(*read) == facts_json(*read_machine_facts(unmarked(to_line(*read)))));
  CHECK_FALSE(contains(facts_json(facts), "00ff"));  // The proof of the secret.

  ProbeAsk ask{.what = ProbeAsk::What::Connect,
               .names = {"x"},
               .nonce = "n",
               .token = "t",
               .address = "a",
               .rendezvous_port = 1,
               .ephemeral_port = 2};
  const auto asked = read_probe_ask(to_line(ask));
  REQUIRE(asked);
  CHECK(asked->what == ProbeAsk::What::Connect);
  CHECK(asked->ephemeral_port == 2);
  const auto pair = read_pair_facts(
      unmarked(to_line(PairFacts{.rendezvous = Reached::Refused, .large_stalled = true})));
  REQUIRE(pair);
  CHECK(pair->rendezvous == Reached::Refused);
  CHECK(pair->large_stalled);
  CHECK(read_listening(unmarked(to_line(Listening{true, "pid 1", 7, ""})))->ephemeral_port == 7);
  CHECK(read_probe_hello(unmarked(to_line(ProbeHello{1, "v", "c"})))->version == "v");
  CHECK(read_clock(unmarked(clock_line(12.5))) == 12.5);
}

TEST_CASE("17.3: a hostile answer is refused or made harmless", "[doctor]") {
  for (const char* line : {"", "x", "[]", "null", "{}", R"({"facts": 1})", R"({"facts": null})",
                           R"({"clock": {"wall_s": "1"}})", R"({"clock": {"wall_s": 1e999}})",
                           R"({"hello": []})", "{\"facts\": {\"cpus\": 1}", "\xff\xfe"}) {
    INFO(line);
    CHECK_FALSE(read_machine_facts(line));
    CHECK_FALSE(read_clock(line));
    CHECK_FALSE(read_probe_hello(line));
    CHECK_FALSE(read_pair_facts(line));
    CHECK_FALSE(read_probe_ask(line));
    CHECK_FALSE(read_listening(line));
  }
  const auto odd = read_machine_facts(
      R"({"facts": {"cpus": 1e300, "names": 7, "interfaces": [1, {"mtu": -5, "name": 3}],
          "gpu": [], "memory_available": -1, "cgroup_cpus": -2, "host_name": "a\u001b[2Jb\n",
          "kernel": {"a": 1}}})");
  REQUIRE(odd);
  CHECK(odd->cpus == 0);
  CHECK(odd->names.empty());
  REQUIRE(odd->interfaces.size() == 2);
  CHECK(odd->interfaces[1].mtu == 0);
  CHECK(odd->memory_available == no_limit);
  CHECK(odd->cgroup_cpus == 0);
  CHECK(odd->host_name == "a?[2Jb?");
  CHECK(read_pair_facts(R"({"pair": {"rendezvous": 99, "ephemeral": -1}})")->rendezvous ==
        Reached::Failed);
  const std::string many(20'000, '1');
  std::string list = R"({"facts": {"host_name": ")" + many + R"(", "names": [)";
  for (int i = 0; i < 10'000; ++i) list += i == 0 ? "{}" : ",{}";
  const auto big = read_machine_facts(list + "]}}");
  REQUIRE(big);
  CHECK(big->host_name.size() == 300);
  CHECK(big->names.size() == 4'096);
}

TEST_CASE("17.3: the report begins with what is red, fits 80 columns, and ends with a block",
          "[doctor]") {
  const std::string text = report_text(two_hosts(), false);
  INFO(text);
  CHECK(widest(text) <= 80);
  CHECK(text.find("RED    host-a -> host-b: connection: port 29500") <
        text.find("AMBER  host-b: /dev/shm: 64 MiB"));
  CHECK(text.find("AMBER") < text.find("green  host-a: loopback 127.0.0.1 answers; CPUs 8"));
  CHECK(contains(text, "       do: docker run --shm-size\n"));
  CHECK(contains(text, "host-b -> host-a  250 MB/s  0.1 ms"));
  CHECK(contains(text, "1 red, 1 amber"));
  const std::string block = text.substr(text.find("```text\n"));
  CHECK(contains(block, "RED host-a -> host-b: connection: port 29500: no answer"));
  CHECK(contains(block, "host-a: Linux 6.1 x86_64, 8 CPUs"));
  CHECK(block.substr(block.size() - 4) == "```\n");
  CHECK_FALSE(contains(text, "\033"));
  CHECK(contains(report_text(two_hosts(), true), "\033[38;5;160mRED\033[39m"));

  CHECK(report_brief(two_hosts()) == "RED host-a -> host-b: connection: port 29500: no answer\n");

  DoctorReport fine = two_hosts();
  fine.findings.resize(1);
  CHECK(contains(report_text(fine, false), "all green"));
  CHECK(report_brief(fine).empty());
}

TEST_CASE("17.3: the report as JSON and the hostfile name the hosts that are fit", "[doctor]") {
  DoctorReport report = two_hosts();
  const auto json = nlohmann::json::parse(report_json(report));
  CHECK(json["level"] == "red");
  CHECK(json["hosts"][0]["fit"] == true);
  CHECK(json["hosts"][1]["fit"] == false);
  CHECK(json["pairs"][0]["ephemeral"] == "no answer");
  CHECK(json["findings"].size() == 4);
  CHECK(json["hosts"][0]["facts"]["gpu"]["driver"] == "550.54.15");

  const HostList left = parse_hostfile(hostfile_text(report), "file");
  REQUIRE(left.hosts.size() == 1);
  CHECK(left.hosts[0].login == "me@host-a");
  CHECK(left.hosts[0].workers == 2);
  CHECK(contains(hostfile_text(report), "# left out: me@host-b"));

  report.hosts[0].host.addresses = {"10.1.0.1"};
  const HostList with_addresses = parse_hostfile(hostfile_text(report), "file");
  REQUIRE(with_addresses.hosts.size() == 1);
  CHECK(with_addresses.hosts[0].addresses == std::vector<std::string>{"10.1.0.1"});
  CHECK(with_addresses.hosts[0].workers == 2);

  report.findings.push_back({Level::Red, "host-a", "TMPDIR", "", "", "", {0}});
  CHECK_FALSE(contains(hostfile_text(report), "me@host-a slots"));
}

TEST_CASE("17.3: the words behind doctor", "[doctor]") {
  const DoctorOptions given =
      parsed({"-H", "a:8,me@b", "--json", "--master_port=4000", "--copy-self", "--ssh-options",
              "-i key", "--ssh-options=-p 22", "--color", "never", "--timeout=2.5"});
  REQUIRE(given.over_ssh.hosts.size() == 2);
  CHECK(given.over_ssh.hosts[1].login == "me@b");
  CHECK(given.json);
  CHECK(given.port == 4'000);
  CHECK(given.timeout == std::chrono::milliseconds(2'500));
  CHECK(given.over_ssh.copy_self);
  CHECK(given.over_ssh.ssh_options == std::vector<std::string>{"-i", "key", "-p", "22"});
  CHECK(given.color == ColorWhen::Never);
  CHECK(parsed({}).over_ssh.hosts.empty());
  CHECK(parsed({"--probe"}).is_probe);
  const DoctorOptions from_variable = parse_doctor_options({}, [](const std::string& name) {
    return name == "PET_HOSTS" ? std::optional<std::string>("x,y,z") : std::nullopt;
  });
  CHECK(from_variable.over_ssh.hosts.size() == 3);

  const auto refused = [](const std::vector<std::string>& words) {
    return message_of<UsageExit>([&] { parsed(words); });
  };
  CHECK(contains(refused({"host-a"}), "hosts are named with -H"));
  CHECK(contains(refused({"--jsn"}), "unknown option --jsn"));
  CHECK(contains(refused({"-H"}), "needs a value"));
  CHECK(contains(refused({"--json=1"}), "takes no value"));
  CHECK(contains(refused({"--json", "--brief"}), "contradict each other"));
  CHECK(parsed({"--brief"}).brief);
  CHECK(contains(refused({"--master-port", "0"}), "--master-port=0"));
  CHECK(contains(refused({"--timeout", "x"}), "--timeout=x"));
  CHECK(contains(refused({"--timeout", "601"}), "600 seconds at most"));
  CHECK(contains(refused({"-H", "a,,b"}), "a host is missing"));
  CHECK(contains(refused({"-H", "a", "--hostfile", "b"}), "give one of them"));
  CHECK(contains(refused({"--write-hostfile", "/no/such/folder/x"}), "--write-hostfile"));
  const std::string help = refused({"-h"});
  for (const WatchOptionRow& row : doctor_option_table()) {
    CHECK(contains(help, std::string("--") + row.name));
  }
  CHECK(widest(help) <= 80);
}
