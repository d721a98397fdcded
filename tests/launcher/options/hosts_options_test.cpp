// What of a command line with hosts is for the whole job, what for each node, and what is refused.
#include "launcher/options/hosts_options.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"
#include "tests/testing/variables.h"

using namespace ddprun::launcher;
using ddprun::testing::contains;

namespace {

using Words = std::vector<std::string>;
using ddprun::testing::lookup_in;
using ddprun::testing::Variables;

LaunchOptions parse_hosts(Words words, const Variables& variables = {}) {
  words.insert(words.end(), {"./no-such-program", "--its-own"});
  return parse_options(words, lookup_in(variables), "/opt/bin/ddprun");
}

std::string refused(const Words& words, const Variables& variables = {}) {
  try {
    parse_hosts(words, variables);
  } catch (const UsageExit& exit) {
    CHECK(exit.status() == 2);
    return exit.what();
  }
  return "accepted";
}

bool has_word(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

TEST_CASE("17.3: hosts make the nodes, and the program is looked for there", "[hosts]") {
  const LaunchOptions options = parse_hosts({"-H", "a:8,b", "--nproc-per-node", "2"});
  CHECK(options.over_ssh.hosts.size() == 2);
  CHECK(options.over_ssh.workers == Words{"8", "2"});
  CHECK(options.nnodes_min == 2);
  CHECK(options.nnodes_max == 2);
  CHECK(options.program == Words{"./no-such-program", "--its-own"});
  CHECK(options.run_id.size() == 36);  // Random: two jobs never take each other's nodes.
  // The GPUs of a login node mean nothing.
  CHECK(parse_hosts({"-H", "a", "--nproc-per-node", "gpu"}).over_ssh.workers == Words{"gpu"});
  CHECK(parse_hosts({}, {{"PET_HOSTS", "a,b"}, {"PATH", "/bin"}}).over_ssh.hosts.size() == 2);
}

TEST_CASE("17.3: each node is given what was given here, less what differs", "[hosts]") {
  // Its own: a report's place is looked at, and what others have in a shared folder is not known.
  const ddprun::testing::TemporaryFolder folder;
  const std::string report = folder / "report.json";
  const LaunchOptions options = parse_hosts(
      {"-H", "a,b", "--max-restarts", "3", "--pty", "--report", report, "-x", "A", "-x", "B=1,2",
       "--ssh-options", "-p 22", "--ssh-options", "-i 'a key'", "--copy-self", "--dry-run"},
      {{"PET_TEE", "3"}, {"PET_STANDALONE", "0"}, {"SLURM_STEP_NUM_NODES", "7"}});
  const Words& arguments = options.over_ssh.node_arguments;
  CHECK(has_word(arguments, "--max-restarts=3"));
  CHECK(has_word(arguments, "--pty"));
  CHECK(has_word(arguments, "--tee=3"));
  CHECK(arguments.size() == 3);
  CHECK(options.over_ssh.exports == Words{"A", "B=1,2"});
  CHECK(options.over_ssh.ssh_options == Words{"-p", "22", "-i", "a key"});
  CHECK(options.over_ssh.copy_self);
  CHECK(options.report_file == report);
  CHECK_FALSE(options.over_ssh.endpoint_given);
  const OverSsh told = parse_hosts({"-H", "a,b", "--rdzv-endpoint", "a:4711"}).over_ssh;
  CHECK(told.endpoint_given);
  CHECK(told.port_given);
  CHECK_FALSE(parse_hosts({"-H", "a,b", "--master-addr", "a"}).over_ssh.port_given);
}

TEST_CASE("17.3: a value of -x is whole, whatever it holds", "[hosts]") {
  const auto exports = [](const Words& words, const Variables& variables = {}) {
    Words all{"-H", "a"};
    all.insert(all.end(), words.begin(), words.end());
    return parse_hosts(all, variables).over_ssh.exports;
  };
  CHECK(exports({"-x", "KEY=first\nsecond", "-x", "B=2\n", "-x", "C"}) ==
        Words{"KEY=first\nsecond", "B=2\n", "C"});
  CHECK(exports({}, {{"PET_EXPORT", "A=1,2\nB"}}) == Words{"A=1,2", "B"});
}

TEST_CASE("17.3: elastic jobs have as many hosts as they may have nodes", "[hosts]") {
  const LaunchOptions options =
      parse_hosts({"-H", "a,b,c", "--nnodes", "2:3", "--rdzv-backend", "c10d"});
  CHECK(options.nnodes_min == 2);
  CHECK(options.nnodes_max == 3);
  CHECK(contains(refused({"-H", "a,b", "--nnodes", "2:3"}), "there are 2 hosts"));
}

TEST_CASE("17.3: what contradicts hosts is refused", "[hosts]") {
  CHECK(contains(refused({"-H", "a", "--standalone"}), "--standalone is for one node"));
  CHECK(contains(refused({"-H", "a", "--node-rank", "0"}), "starts all of them"));
  CHECK(contains(refused({"-H", "a", "--hostfile", "/x"}), "give one of them"));
  CHECK(contains(refused({"-H", "a b"}), "expected a host"));
  CHECK(contains(refused({"-H", "a", "--nproc-per-node", "many"}), "--nproc-per-node=many"));
  CHECK(contains(refused({"-H", "a", "--nproc-per-node", "3:2"}), "MIN from 1 to MAX"));
  CHECK(contains(refused({"-H", "a", "--nproc-per-node", "1:many"}), "--nproc-per-node=1:many"));
  CHECK(contains(refused({"-x", "1A"}), "--export=1A"));
  CHECK(contains(refused({"--hostfile", "/"}), "--hostfile=/"));
  const LaunchOptions alone = parse_options(
      {"--copy-self", "/bin/true"}, [](const std::string&) { return std::nullopt; }, "");
  CHECK(alone.notes.size() == 1);
  CHECK(alone.over_ssh.hosts.empty());
}

TEST_CASE("17.3: a hostfile's mistakes are told with file and line", "[hosts]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "hosts";
  std::ofstream(path) << "a slots=2\nb;c\n";
  CHECK(contains(refused({"--hostfile", path}), path + ":2: "));
  std::ofstream(path) << R"({"hosts": [{"ssh": "a"}], "envs": ["B=0", "A=1"]})";
  CHECK(parse_hosts({"--hostfile", path, "-x", "B=2"}).over_ssh.exports ==
        Words{"B=0", "A=1", "B=2"});
  std::ofstream(path) << R"({"hosts": [{"ssh": "a"}], "envs": ["A B=1"]})";
  CHECK(contains(refused({"--hostfile", path}), "\"envs\""));
  std::ofstream(path) << "a slots=2\nb\n";
  CHECK(parse_hosts({"--hostfile", path}).over_ssh.workers == Words{"2", "1"});
}
