// ddprun doctor as a person uses it: this machine, hosts behind a real sshd, and networks of which
// something is broken.
#include <signal.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/end_to_end/ssh_hosts.h"

using namespace ddprun::testing;

namespace {

using Words = std::vector<std::string>;

std::string missing_for_networks() {
  const std::string why = NetworkHosts::unavailable();
  return why.empty() ? SshHosts::missing() : why;
}

// Long enough on a busy machine, unless something has to be lost.
std::string timeout() { return "--timeout=" + patience_seconds(2); }

Words doctor(const Words& options) { return launch({"doctor"}) + options; }

// The findings of one thing, as "level value".
Words found(const nlohmann::json& report, const std::string& what) {
  Words all;
  for (const auto& finding : report["findings"]) {
    if (finding["what"] != what) continue;
    all.push_back(finding["level"].get<std::string>() + " " + finding["where"].get<std::string>() +
                  " " + finding["value"].get<std::string>());
  }
  return all;
}

nlohmann::json examine(const Words& command, std::map<std::string, std::string> variables = {}) {
  variables["PET_HOSTS"] = "";
  const ProcessResult result = run(command, 120s, variables);
  INFO(result.output);
  CHECK((result.status == 0 || result.status == 1));
  const auto json = nlohmann::json::parse(result.output, nullptr, false);
  REQUIRE(json.is_object());
  CHECK((json["level"] == "red") == (result.status == 1));
  return json;
}

}  // namespace

TEST_CASE("17.3: the doctor of one machine says what it found, and a small /dev/shm is amber") {
  const ProcessResult text = run(doctor({}), 60s,
                                 {{"SLURM_STEP_NUM_NODES", "2"},
                                  {"SLURM_NODEID", "0"},
                                  {"SLURM_JOB_ID", "7"},
                                  {"SLURM_STEP_ID", "0"},
                                  {"SLURM_STEP_NUM_TASKS", "2"},
                                  {"SLURM_STEP_NODELIST", "gpu[07,11]"}});
  INFO(text.output);
  CHECK(contains(text.output, "loopback 127.0.0.1 answers"));
  CHECK(contains(text.output, "To paste into an issue"));
  CHECK(contains(text.output, "Slurm"));
  CHECK(contains(text.output, "gpu07"));

  const Words small = {
      "unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=32m tmpfs /dev/shm && exec \"$@\"",
      "sh"};
  if (run(small + Words{"true"}, 20s).status != 0) {
    DDPRUN_SKIP("this user may not mount a file system (unshare -m)");
  }
  const auto report = examine(small + doctor({"--json"}));
  REQUIRE(found(report, "/dev/shm").size() == 1);
  CHECK(contains(found(report, "/dev/shm")[0], "amber "));
  CHECK(contains(found(report, "/dev/shm")[0], "32 MiB, 32 MiB free"));
}

TEST_CASE(
    "17.3: the doctor knows how NVIDIA's driver finds the GPUs, and does not wait for it long") {
  const TemporaryFolder folder;
  const auto gpus_of = [&](const std::string& told) {
    std::ofstream(folder / "driver") << told;
    return examine(doctor({"--json"}),
                   {{"LD_LIBRARY_PATH", DDPRUN_FAKE_NVML_FOLDER},
                    {"FAKE_NVML", folder / "driver"},
                    {"CUDA_VISIBLE_DEVICES", "1,0"}})["hosts"][0]["facts"]["gpu"];
  };
  const auto gpus = gpus_of(
      "GPU-aa 0 5000000000 80000000000 41:1 42:1 reasons=44 clock=780 clock_max=1980 celsius=92 "
      "errors=3 rows=10\nlost\nGPU-cc 0 0 0\n");
  INFO(gpus.dump());
  CHECK(gpus["is_silent"] == false);
  REQUIRE(gpus["states"].size() == 2);
  CHECK(gpus["states"][0]["answers"] == false);
  const auto& state = gpus["states"][1];
  CHECK(state["index"] == 0);
  CHECK(state["answers"] == true);
  CHECK(state["memory_used"] == 5'000'000'000);
  CHECK(state["pids"] == std::vector{41, 42});
  CHECK(state["slowed"] == "by heat: 780 of 1980 MHz, 92 C");
  CHECK(state["memory_errors"] == 3);
  CHECK(state["needs_reset"] == true);
  CHECK(state["is_worn_out"] == false);

  const auto silent = gpus_of("hang\n");
  CHECK(silent["is_silent"] == true);
  CHECK(silent["states"].empty());
}

TEST_CASE("17.3: a probe ends with its stdin, and with what is no question") {
  const ProcessResult ended = run(
      shell("printf '{\"ask\": {\"what\": 0}}\\n' | " + binary("ddprun") + " doctor --probe"), 30s);
  INFO(ended.output);
  CHECK(ended.status == 0);
  CHECK(contains(ended.output, "\"wall_s\""));
  const ProcessResult odd = run(shell("printf 'rubbish\\n{\"ask\": {\"what\": 0}}\\n' | " +
                                      binary("ddprun") + " doctor --probe"),
                                30s);
  CHECK(odd.ended);
  CHECK_FALSE(contains(odd.output, "wall_s"));
}

TEST_CASE("17.3: a host that cannot be asked is red, the others are examined and written down") {
  if (const std::string why = SshHosts::missing(); !why.empty()) DDPRUN_SKIP(why);
  const Place place;
  const SshHosts hosts(place);
  const std::string copy = place.folder / "ddprun-copy", good = place.folder / "good.txt";
  // Its file is gone, so that host-a needs a copy.
  const Words command = Words{"/bin/sh", "-c",
                              "cp " + binary("ddprun") + " " + copy + " && exec 9< " + copy +
                                  " && rm " + copy + " && exec /proc/self/fd/9 \"$@\"",
                              "launch"} +
                        Words{"doctor",      "-H",      "host-a,host-refused", hosts.options(),
                              "--copy-self", timeout(), "--write-hostfile",    good};

  const ProcessResult result = run(command, 120s, place.variables());

  INFO(result.output);
  CHECK(result.status == 1);
  CHECK(contains(result.output, "RED    host-refused: ssh: ssh ended with status 255"));
  CHECK(contains(result.output, "do: is sshd running there"));
  CHECK(contains(result.output, "host-a: loopback 127.0.0.1 answers"));
  CHECK(contains(content_of(good), "\nhost-a slots="));
  CHECK(contains(content_of(good), "# left out: host-refused"));
  check_nothing_left(place);
}

TEST_CASE("17.3: a host that an sshd turned away once is asked again") {
  const TemporaryFolder folder;
  // The first three logins come at a bad moment.
  std::ofstream(folder / "ssh")
      << "#!/bin/sh\nfor try in 1 2 3; do\n"
         "  mkdir '" +
             folder.path() +
             "/'$try 2>/dev/null || continue\n"
             "  echo 'kex_exchange_identification: Connection closed by remote host' >&2\n"
             "  exit 255\ndone\n"
             "for last; do :; done\nexec sh -c \"$last\"\n";
  std::filesystem::permissions(folder / "ssh", std::filesystem::perms::owner_all);
  const ProcessResult result = run(doctor({"-H", "host-a,host-b", "--json", timeout()}), 120s,
                                   {{"PATH", folder.path() + ":" + std::getenv("PATH")}});
  INFO(result.output);
  CHECK(std::filesystem::exists(folder / "3"));
  const auto report = nlohmann::json::parse(result.output, nullptr, false);
  REQUIRE(report.is_object());
  CHECK(found(report, "ssh").empty());
  CHECK(report["hosts"].size() == 2);
}

TEST_CASE("17.3: hosts that reach each other are not red, and each broken way has its words") {
  if (const std::string why = missing_for_networks(); !why.empty()) DDPRUN_SKIP(why);
  const Place place;
  const NetworkHosts network(2);
  const SshHosts hosts(place, &network);
  const auto ask = [&](const std::string& wait) {
    return examine(network.on(0, doctor({"-H", "host-a,host-b", hosts.options(), "--json", wait})));
  };

  const auto healthy = ask(timeout());
  INFO(healthy.dump(1));
  REQUIRE(found(healthy, "connections").size() == 1);
  CHECK(contains(found(healthy, "connections")[0], "green all hosts 2 directions passed"));
  CHECK(healthy["level"] != "red");
  REQUIRE(healthy["pairs"].size() == 2);
  for (const auto& pair : healthy["pairs"]) CHECK(pair["bytes_per_s"] > 0);
  CHECK(contains(found(healthy, "interface").at(1), "green host-b eth0 10.77.0.2, MTU 1500"));
  CHECK(contains(found(healthy, "names").at(1), "amber host-a host-b does not resolve"));

  const auto block = [&](int host, const Words& how) {
    return run(
        network.on(host, Words{"iptables", "-A", "INPUT", "-p", "tcp", "--dport", "29500"} + how),
        20s);
  };
  const ProcessResult rule = block(1, {"-j", "DROP"});
  if (rule.status != 0) DDPRUN_SKIP("no iptables to make a firewall with: " + rule.output);
  REQUIRE(block(0, {"-j", "REJECT", "--reject-with", "tcp-reset"}).status == 0);
  const auto walled = ask("--timeout=3");
  INFO(walled.dump(1));
  REQUIRE(found(walled, "connection").size() == 2);
  CHECK(found(walled, "connection")[0] == "red host-b -> host-a port 29500: refused");
  CHECK(found(walled, "connection")[1] == "red host-a -> host-b port 29500: no answer");
  check_nothing_left(place);
}

TEST_CASE("17.3: a network that loses large packets is red, though ssh comes through") {
  if (const std::string why = missing_for_networks(); !why.empty()) DDPRUN_SKIP(why);
  const Place place;
  const NetworkHosts network(2);
  const SshHosts hosts(place);
  // A login of its own way, as over a management network: an sshd on the pipes of its ssh.
  const std::string proxy = place.folder / "proxy";
  std::ofstream script(proxy);
  script << "#!/bin/sh\ncase $1 in\n";
  for (const int host : {0, 1}) {
    script << "host-" << (host == 0 ? "a" : "b") << ") exec";
    for (const std::string& word :
         network.on(host, {"/usr/sbin/sshd", "-i", "-f", place.folder / "ssh/sshd_config"})) {
      script << " '" << word << "'";
    }
    script << " ;;\n";
  }
  script << "esac\n";
  script.close();
  REQUIRE(run({"chmod", "755", proxy}, 20s).status == 0);
  const std::string hostfile = place.folder / "hosts.json";
  std::ofstream(hostfile) << "[{\"ssh\": \"host-a\", \"ips\": [\"" << NetworkHosts::address(0)
                          << "\"]}, {\"ssh\": \"host-b\", \"ips\": [\"" << NetworkHosts::address(1)
                          << "\"]}]";
  network.narrow_cable(1, 1'200);

  const auto report = examine(doctor({"--hostfile", hostfile, hosts.options(),
                                      "--ssh-options=-o 'ProxyCommand=" + proxy + " %n'", "--json",
                                      "--timeout=" + patience_seconds(1)}));

  INFO(report.dump(1));
  REQUIRE(found(report, "connection").size() == 2);
  CHECK(found(report, "connection")[1] ==
        "red host-a -> host-b small messages arrive, large ones do not");
  check_nothing_left(place);
}

TEST_CASE("17.3: nothing is left on any host when the doctor is killed") {
  if (const std::string why = SshHosts::missing(); !why.empty()) DDPRUN_SKIP(why);
  const Place place;
  const SshHosts hosts(place);
  // The second one never answers, so that the first one's probe waits.
  const std::string tools = place.folder / "tools";
  REQUIRE(std::filesystem::create_directory(tools));
  std::ofstream(tools + "/ssh") << "#!/bin/sh\ncase \"$*\" in *host-x*) exec sleep 300 ;; esac\n"
                                   "exec /usr/bin/ssh \"$@\"\n";
  REQUIRE(run({"chmod", "755", tools + "/ssh"}, 20s).status == 0);
  auto variables = place.variables();
  variables["PATH"] = tools + ":/usr/bin:/bin";
  Process job(doctor({"-H", "host-a,host-x", hosts.options()}), variables);
  const auto probe_runs = [&] {
    const std::vector<int> all = place.processes();
    return std::any_of(all.begin(), all.end(), [&](int pid) {
      // It may end between opening and reading, of which content_of() would make an exception.
      std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
      std::string words;
      std::getline(file, words);
      return words.size() > 8 && words.compare(words.size() - 8, 7, "--probe") == 0 &&
             words.find("ssh") == std::string::npos && words.find("-c") == std::string::npos;
    });
  };
  REQUIRE(job.wait_until(probe_runs, 10s));

  job.send_signal(SIGKILL);

  CHECK(job.wait(30s).ended);
  check_nothing_left(place);
}
