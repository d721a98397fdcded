// The scripts for Slurm and `srun ddprun`: against a real Slurm of two nodes where this machine has
// one (slurm_cluster), and in parts against a fake_srun that sets the same variables.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/end_to_end/small_training.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;
namespace fs = std::filesystem;

namespace {

const std::string sources = DDPRUN_SOURCE_DIR;

void write_program(const std::string& path, const std::string& commands) {
  std::ofstream(path) << "#!/bin/bash\n" << commands;
  fs::permissions(path, fs::perms::owner_all);
}

// A folder as jobs are submitted from, with scripts/ in it.
struct SubmitFolder {
  SubmitFolder() { fs::create_directory_symlink(sources + "/scripts", folder / "scripts"); }

  // Runs `commands` there, against a real Slurm of two nodes.
  ProcessResult with_slurm(const std::string& commands,
                           std::map<std::string, std::string> variables = {}) const {
    variables.insert({{"DDPRUN", binary("ddprun")}, {"OMP_NUM_THREADS", "1"}});
    return run({sources + "/tests/end_to_end/slurm_cluster", "/bin/bash", "-ec",
                "cd '" + folder.path() + "'\n" + commands},
               300s, variables);
  }

  TemporaryFolder folder;
};

#define SKIP_WITHOUT_SLURM(result)                                                \
  if (const auto at = (result).output.find("SKIPPED: "); at != std::string::npos) \
  DDPRUN_SKIP((result).output.substr(at + 9))

// A folder with `srun` and `scontrol` in it, first on PATH. scontrol notes what it is asked to do,
// and shows of a job what notes.job says.
std::map<std::string, std::string> fake_slurm(const TemporaryFolder& folder) {
  const std::string bin = folder / "bin";
  fs::create_directory(bin);
  fs::create_symlink(sources + "/tests/end_to_end/fake_srun", bin + "/srun");
  write_program(bin + "/scontrol",
                "[ \"$1\" != show ] || exec cat \"$NOTES.job\"\necho \"$*\" >>\"$NOTES\"\n");
  return {{"PATH", bin + ":" + std::getenv("PATH")},
          {"NOTES", folder / "notes"},
          {"SLURM_JOB_ID", "4711"},
          {"SLURM_NTASKS", "1"},
          {"SLURM_NNODES", "1"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(free_port())},  // Not the one that the job's number gives.
          {"NPROC", "1"}};
}

ProcessResult run_in(const std::string& folder, const std::string& script,
                     const std::map<std::string, std::string>& variables) {
  return run({"/bin/bash", "-c", "cd '" + folder + "' && exec /bin/bash scripts/" + script}, 60s,
             variables);
}

bool is_free(int port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool free = ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(listener);
  return free;
}

}  // namespace

TEST_CASE("node.sbatch queues itself again when it was stopped before the end") {
  const SubmitFolder place;
  auto variables = fake_slurm(place.folder);
  variables["DDPRUN"] = place.folder / "stopped";
  write_program(place.folder / "stopped", "exit 75\n");

  CHECK(run_in(place.folder.path(), "node.sbatch", variables).status == 75);
  CHECK(content_of(place.folder / "notes") == "requeue 4711\n");
  const std::string begun = "   PreemptEligibleTime=2026-11-30T10:58:25 PreemptTime=";
  const std::string ends[] = {"TimeLimit Dependency=(null)\n", "Preempted Dependency=(null)\n",
                              "None Dependency=(null)\n" + begun + "2026-11-30T10:58:27\n"};
  for (const std::string& why : ends) {
    fs::remove(place.folder / "notes");
    std::ofstream(place.folder / "notes.job")
        << "JobId=4711\n   JobState=COMPLETING Reason=" << why;
    CHECK(run_in(place.folder.path(), "node.sbatch", variables).status == 75);
    CHECK(content_of(place.folder / "notes") == "requeue 4711\n");
  }
  // Not when somebody cancelled it.
  std::ofstream(place.folder / "notes.job") << "   JobState=COMPLETING Reason=None\n"
                                            << begun << "None\n";
  CHECK(run_in(place.folder.path(), "node.sbatch", variables).status == 75);
  CHECK(content_of(place.folder / "notes") == "requeue 4711\n");
  fs::remove(place.folder / "notes.job");
  // An element of an array alone: the last one's number is that of all.
  variables.insert({{"SLURM_ARRAY_JOB_ID", "4711"}, {"SLURM_ARRAY_TASK_ID", "3"}});
  fs::remove(place.folder / "notes");
  CHECK(run_in(place.folder.path(), "node.sbatch", variables).status == 75);
  CHECK(content_of(place.folder / "notes") == "requeue 4711_3\n");
  variables.erase("SLURM_ARRAY_JOB_ID");
  fs::remove(place.folder / "notes");
  CHECK(run_in(place.folder.path(), "node.sbatch", variables).status == 75);
  CHECK(content_of(place.folder / "notes") == "requeue 4711\n");
  // Not for ever, and not for another reason.
  variables.insert({"SLURM_RESTART_COUNT", "20"});
  CHECK(run_in(place.folder.path(), "node.sbatch", variables).status == 75);
  variables.erase("SLURM_RESTART_COUNT");
  write_program(place.folder / "stopped", "exit 1\n");
  CHECK(run_in(place.folder.path(), "node.sbatch", variables).status == 1);
  CHECK(content_of(place.folder / "notes") == "requeue 4711\n");
}

TEST_CASE("run_node.sh starts a launcher again that was killed, not one whose worker was") {
  const SubmitFolder place;
  auto variables = fake_slurm(place.folder);
  variables["DDPRUN"] = place.folder / "launcher";
  // Dies by SIGKILL until there is a second line in its notes.
  write_program(place.folder / "launcher",
                "echo start >>\"$NOTES\"; [ \"$(wc -l <\"$NOTES\")\" -ge 2 ] || kill -KILL $$\n");
  const auto killed = run_in(place.folder.path(), "node.sbatch", variables);
  INFO(killed.output);
  CHECK(killed.status == 0);
  CHECK(content_of(place.folder / "notes") == "start\nstart\n");
  CHECK(contains(killed.output, "the launcher of node 0 was killed; starting it again, 2 times"));

  fs::remove(place.folder / "notes");
  write_program(place.folder / "train", "echo start >>\"$NOTES\"; kill -KILL $$\n");
  variables["DDPRUN"] = binary("ddprun");
  variables["MAX_RESTARTS"] = "0";
  variables["AGENT_RESTARTS"] = "3";
  CHECK(run_in(place.folder.path(), "node.sbatch", variables).status == 137);
  CHECK(content_of(place.folder / "notes") == "start\n");

  // The user's report is written all the same, and its place changes nothing.
  const auto check_report = [&](const std::string& script) {
    fs::remove(place.folder / "notes");
    CHECK(run_in(place.folder.path(), script, variables).status == 137);
    CHECK(content_of(place.folder / "notes") == "start\n");
    CHECK(contains(content_of(place.folder / "report"), "\"exit_status\": 137"));
    fs::remove(place.folder / "report");
  };
  check_report("run_node.sh --report report ./train");
  variables["PET_REPORT"] = place.folder / "report";
  check_report("node.sbatch");
}

TEST_CASE("run_node.sh asks for another turn when it is stopped before its launcher hears it") {
  const SubmitFolder place;
  auto variables = fake_slurm(place.folder);
  variables["DDPRUN"] = place.folder / "launcher";
  const std::string agent_restarts = GENERATE("0", "3");
  variables["AGENT_RESTARTS"] = agent_restarts;
  CAPTURE(agent_restarts);
  const auto status = [&] {
    return run_in(place.folder.path(), "run_node.sh train", variables).status;
  };
  // While the script still asks who node 0 is, and Slurm's signal ends what it asks as well.
  variables.erase("MASTER_ADDR");
  variables["SLURM_STEP_NODELIST"] = "localhost";
  write_program(place.folder / "bin/scontrol", "kill -TERM $SCRIPT_PID $$\n");
  write_program(place.folder / "launcher", "echo started >>\"$NOTES\"\n");
  const auto asking =
      run({"/bin/bash", "-c",
           "cd '" + place.folder.path() +
               "' && export SCRIPT_PID=$$ && exec /bin/bash scripts/run_node.sh train"},
          60s, variables);
  INFO(asking.output);
  CHECK(asking.status == 75);
  CHECK_FALSE(fs::exists(place.folder / "notes"));
  // While the launcher starts. Without a script that waits for it, its end is the job's.
  variables["MASTER_ADDR"] = "127.0.0.1";
  write_program(place.folder / "launcher", "echo started >>\"$NOTES\"; kill -TERM $$\n");
  CHECK(status() == (agent_restarts == "0" ? 143 : 75));
  CHECK(content_of(place.folder / "notes") == "started\n");
}

TEST_CASE("run_node.sh passes on what its launcher ended with while all were signalled") {
  const SubmitFolder place;
  auto variables = fake_slurm(place.folder);
  variables["DDPRUN"] = place.folder / "launcher";
  variables["AGENT_RESTARTS"] = "3";
  // It has the script wake from its wait, and is gone before that waits again.
  const auto launcher_ends_with = [&](const std::string& status) {
    write_program(place.folder / "launcher",
                  "trap '' TERM; echo " + status +
                      " >\"$DDPRUN_STATUS_FILE\"\n"
                      "until [ \"$(cut -d' ' -f3 /proc/$PPID/stat)\" = S ]; do :; done\n"
                      "kill -TERM $PPID; exit " +
                      status + "\n");
  };
  const auto status = [&] {
    return run_in(place.folder.path(), "run_node.sh train", variables).status;
  };
  launcher_ends_with("0");
  for (int time = 0; time < 10; ++time) CHECK(status() == 0);

  // What the script runs on its way out may be signalled, too.
  write_program(place.folder / "bin/rm", "kill -TERM $$\n");
  launcher_ends_with("75");
  CHECK(status() == 75);
}

TEST_CASE("run_node.sh makes no second Ctrl-C of one, which its launcher hears as well") {
  const TemporaryFolder folder;
  // It saves until its launcher has heard what the script had to say.
  write_program(folder / "train",
                "trap 'until [ $(grep -c signal_received \"$NOTES\") -ge 2 ]; do sleep 0.05; done; "
                "echo SAVED; exit' INT\n"
                "echo up; while :; do sleep 0.05; done\n");
  // setsid: a process group of its own, as a terminal's foreground job is.
  Process script({"setsid", "--wait", sources + "/scripts/run_node.sh", "--event-log",
                  folder / "notes", folder / "train"},
                 {{"AGENT_RESTARTS", "2"},
                  {"DDPRUN", binary("ddprun")},
                  {"MASTER_PORT", std::to_string(free_port())},
                  {"NOTES", folder / "notes"},
                  {"NPROC", "1"}});
  REQUIRE(script.wait_for_output("up\n", 30s));
  ::kill(-::getpgid(descendants_running(script.pid(), "ddprun").front()), SIGINT);
  const ProcessResult result = script.wait(30s);
  INFO(result.output);
  CHECK(contains(result.output, "SAVED"));
  CHECK(result.status == 130);
}

TEST_CASE("run_node.sh passes on to its launcher what would leave it behind") {
  const TemporaryFolder folder;
  write_program(folder / "launcher",
                "for name in USR1 USR2; do trap \"echo has $name\" $name; done\n"
                "trap 'echo has HUP; exit 129' HUP\n"
                "trap 'echo has TERM; exit 75' TERM\n"
                "echo up; while :; do sleep 0.05; done\n");
  const auto start = [&] {
    auto script = std::make_unique<Process>(
        std::vector<std::string>{sources + "/scripts/run_node.sh", "train"},
        std::map<std::string, std::string>{
            {"AGENT_RESTARTS", "2"}, {"DDPRUN", folder / "launcher"}, {"NPROC", "1"}});
    REQUIRE(script->wait_for_output("up\n", 30s));
    return script;
  };
  const auto script = start();
  script->send_signal(SIGUSR1);
  CHECK(script->wait_for_output("has USR1\n", 30s));
  script->send_signal(SIGUSR2);
  CHECK(script->wait_for_output("has USR2\n", 30s));
  script->send_signal(SIGHUP);
  const auto hung_up = script->wait(30s);
  CHECK(contains(hung_up.output, "has HUP\n"));
  CHECK(hung_up.status == 129);

  // A terminal's Ctrl-\ reaches both, and a second SIGQUIT would kill the workers.
  const auto other = start();
  other->send_signal(SIGQUIT);
  const auto quit = other->wait(30s);
  CHECK(contains(quit.output, "has TERM\n"));
  CHECK(quit.status == 131);
}

TEST_CASE("nodes that lost node 0's launcher start again with it, and the job goes on") {
  const TemporaryFolder folder;
  write_program(
      folder / "worker",
      "echo \"rank $RANK\" >>\"$NOTES\"; until [ -e \"$NOTES.go\" ]; do sleep 0.05; done\n");
  const std::string port = std::to_string(free_port());
  std::vector<std::unique_ptr<Process>> nodes;
  for (const char* rank : {"0", "1", "2"}) {
    nodes.push_back(std::make_unique<Process>(
        std::vector<std::string>{sources + "/scripts/run_node.sh", "--rdzv-conf",
                                 "join_timeout=" + patience_seconds(20), folder / "worker"},
        std::map<std::string, std::string>{{"AGENT_RESTARTS", "1"},
                                           {"DDPRUN", binary("ddprun")},
                                           {"MASTER_ADDR", "127.0.0.1"},
                                           {"MASTER_PORT", port},
                                           {"NNODES", "3"},
                                           {"NODE_RANK", rank},
                                           {"NOTES", folder / "notes"},
                                           {"NPROC", "1"}}));
  }
  const auto workers_came = [&](int count) {
    return nodes[0]->wait_until(
        [&] { return count_of(content_of(folder / "notes"), "rank ") == count; });
  };
  REQUIRE(workers_came(3));
  ::kill(descendants_running(nodes[0]->pid(), "ddprun").front(), SIGKILL);
  CHECK(workers_came(6));
  std::ofstream(folder / "notes.go").close();
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const auto result = nodes[node]->wait(60s);
    INFO(result.output);
    CHECK(result.status == 0);
    CHECK(contains(result.output, "node " + std::to_string(node) + " has lost node 0; starting") ==
          (node > 0));
  }
}

TEST_CASE("run_node.sh hands a secret that comes once to each launcher, and shows it to nobody") {
  const TemporaryFolder folder;
  const std::string secret = "0123456789abcdef0123456789abcdef";
  write_program(folder / "launcher",
                "cat \"${@: -2:1}\" >>\"$NOTES\"\n"
                "! { env; tr '\\0' ' ' </proc/$$/cmdline; } | grep -q 89abcdef || echo SHOWN\n"
                "[ \"$(wc -l <\"$NOTES\")\" -ge 2 ] || kill -KILL $$\n");
  const std::string script = sources + "/scripts/run_node.sh";
  for (const std::string& command :
       {"echo " + secret + " | " + script + " --secret-file /dev/stdin train",
        script + " --secret-file <(echo " + secret + ") train"}) {
    INFO(command);
    std::filesystem::remove(folder / "notes");
    const auto result = run({"/bin/bash", "-c", command}, 60s,
                            {{"AGENT_RESTARTS", "2"},
                             {"DDPRUN", folder / "launcher"},
                             {"NOTES", folder / "notes"},
                             {"NPROC", "1"},
                             {"secret", "the caller's, which is exported"}});
    INFO(result.output);
    CHECK(result.status == 0);
    CHECK(content_of(folder / "notes") == secret + "\n" + secret + "\n");
    CHECK_FALSE(contains(result.output, "SHOWN"));
  }
}

TEST_CASE("run_node.sh's launcher writes its status where no other user can, and it goes away") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "tmp");
  write_program(folder / "launcher", "stat -c 'mode %a' \"${DDPRUN_STATUS_FILE%/*}\"\n");
  const auto result = run({sources + "/scripts/run_node.sh", "train"}, 60s,
                          {{"AGENT_RESTARTS", "1"},
                           {"DDPRUN", folder / "launcher"},
                           {"NPROC", "1"},
                           {"TMPDIR", folder / "tmp"}});
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "mode 700\n"));
  CHECK(fs::is_empty(folder / "tmp"));
}

TEST_CASE(
    "run_node.sh meets where ddprun alone would in a step of Slurm, unless it is told where") {
  const SubmitFolder place;
  auto variables = fake_slurm(place.folder);
  for (const char* given : {"MASTER_ADDR", "MASTER_PORT", "SLURM_NNODES"}) variables.erase(given);
  variables["DDPRUN"] = place.folder / "shown";
  variables["FAKE_NODE_PER_TASK"] = "1";
  variables["SLURM_STEP_ID"] = "3";
  write_program(place.folder / "shown", "echo \"given $*\"\n");
  // More hosts than fit into a pipe.
  write_program(place.folder / "bin/scontrol", "seq -f 'node%g' 20000\n");
  const std::vector<std::string> srun = {place.folder / "bin/srun", "-n", "2"};
  const auto by_script = [&] {
    const auto result = run(
        srun + std::vector<std::string>{sources + "/scripts/run_node.sh", "train"}, 60s, variables);
    INFO(result.output);
    CHECK(result.status == 0);
    CHECK(count_of(result.output, "given --nnodes 2 ") == 2);
    return result.output;
  };
  const auto alone = run(srun + launch({"env"}), 60s, variables);
  INFO(alone.output);
  const int port = number_after(alone.output, "\nport ");
  CHECK(contains(alone.output, "slurm-4711.3 "));
  const std::string met = by_script();
  CHECK(count_of(met, "--master-addr node1 --master-port " + std::to_string(port) + " ") == 2);
  CHECK(count_of(met, "--rdzv-id slurm-4711.3 ") == 2);

  variables["MASTER_PORT"] = "4000";
  variables["PET_RDZV_ID"] = "mine";
  const std::string told = by_script();
  CHECK(count_of(told, "--master-port 4000 ") == 2);
  CHECK_FALSE(contains(told, "slurm-"));
  // Each node by a step of its own.
  for (const char* given : {"MASTER_PORT", "PET_RDZV_ID"}) variables.erase(given);
  variables["NODE_RANK"] = "1";
  const std::string by_hand = by_script();
  CHECK(count_of(by_hand, "--master-port 29500 ") == 2);
  CHECK_FALSE(contains(by_hand, "--rdzv-id"));
}

TEST_CASE("run_node.sh says that srun is missing where one step would be the whole job") {
  const SubmitFolder place;
  auto variables = fake_slurm(place.folder);
  variables["DDPRUN"] = "/bin/true";
  variables["SLURM_JOB_NUM_NODES"] = "2";
  const auto says_so = [&] {
    const auto result = run_in(place.folder.path(), "run_node.sh train", variables);
    INFO(result.output);
    CHECK(result.status == 0);
    return contains(result.output, "this is no step of srun's: srun --ntasks-per-node=1");
  };
  CHECK(says_so());
  variables["SLURM_STEP_ID"] = "4294967290";
  CHECK(says_so());
  variables["SLURM_STEP_ID"] = "0";
  CHECK_FALSE(says_so());
  variables.erase("SLURM_STEP_ID");
  variables["NODE_RANK"] = "0";
  CHECK_FALSE(says_so());
}

TEST_CASE("scripts for Slurm ask srun for the job's CPUs, and take a worker for each GPU") {
  const SubmitFolder place;
  auto variables = fake_slurm(place.folder);
  for (const char* given : {"MASTER_PORT", "NPROC"}) variables.erase(given);
  variables["SLURM_JOB_NAME"] = "relay";
  const std::string shows = " has ${NPROC-none} and ${MASTER_PORT-none}\"";
  fs::remove(place.folder / "bin/srun");
  write_program(place.folder / "bin/srun", "echo \"srun $* .\"; echo \"srun" + shows + "\n");
  write_program(place.folder / "bin/sbatch", "echo \"next" + shows + " >&2; echo 4712\n");
  write_program(place.folder / "bin/scancel", "");
  for (const std::string script : {"node.sbatch", "relay.sbatch", "workers.sbatch"}) {
    INFO(script);
    variables.erase("SLURM_CPUS_PER_TASK");
    variables.erase("SLURM_GPUS_ON_NODE");
    const auto plain = run_in(place.folder.path(), script, variables);
    INFO(plain.output);
    CHECK(plain.status == 0);
    CHECK_FALSE(contains(plain.output, "--cpus-per-task"));
    CHECK(contains(plain.output, "srun has 2 and none") == (script != "workers.sbatch"));
    // The next turn finds out for itself.
    CHECK(contains(plain.output, "next has none and none") == (script == "relay.sbatch"));

    variables["SLURM_CPUS_PER_TASK"] = "8";
    variables["SLURM_GPUS_ON_NODE"] = "4";
    const auto with_gpus = run_in(place.folder.path(), script, variables);
    INFO(with_gpus.output);
    CHECK(contains(with_gpus.output, " --cpus-per-task=8 "));
    CHECK(contains(with_gpus.output, "srun has none and none"));
  }
  variables["DDPRUN"] = place.folder / "shown";
  write_program(place.folder / "shown", "echo \"given $*\"\n");
  const auto node = run_in(place.folder.path(), "run_node.sh train", variables);
  CHECK(contains(node.output, "--nproc-per-node 4 "));
}

TEST_CASE("run_node.sh counts the GPUs that CUDA_VISIBLE_DEVICES names, and not the machine's") {
  const TemporaryFolder folder;
  write_program(folder / "nvidia-smi", "printf 'GPU %s: of the machine\\n' 0 1 2 3 4 5 6 7\n");
  write_program(folder / "shown", "echo \"given $*\"\n");
  const auto workers = [&](const std::string& visible) {
    const std::string command = visible + " exec " + sources + "/scripts/run_node.sh train";
    const auto result =
        run({"/bin/bash", "-c", command}, 60s,
            {{"PATH", folder.path() + ":" + std::getenv("PATH")}, {"DDPRUN", folder / "shown"}});
    INFO(result.output);
    CHECK(result.status == 0);
    const std::string option = "--nproc-per-node ";
    const auto at = result.output.find(option);
    REQUIRE(at != std::string::npos);
    return result.output.substr(at + option.size(),
                                result.output.find(' ', at + option.size()) - at - option.size());
  };
  CHECK(workers("unset CUDA_VISIBLE_DEVICES;") == "8");
  for (const char* some : {"2,3", " 0", "GPU-5f,GPU-6a", "MIG-1"}) {
    CHECK(workers(std::string("export CUDA_VISIBLE_DEVICES='") + some + "';") == "gpu");
  }
  for (const char* none : {"", "-1", "NoDevFiles"}) {
    CHECK(workers(std::string("export CUDA_VISIBLE_DEVICES='") + none + "';") == "1");
  }
}

TEST_CASE("run_node.sh, too, does without a TMPDIR that can be written") {
  const TemporaryFolder folder;
  const ProcessResult result = run({sources + "/scripts/run_node.sh", "true"}, 60s,
                                   {{"AGENT_RESTARTS", "2"},
                                    {"DDPRUN", binary("ddprun")},
                                    {"MASTER_PORT", std::to_string(free_port())},
                                    {"NPROC", "1"},
                                    {"TMPDIR", folder / "missing"}});
  INFO(result.output);
  CHECK(result.status == 0);
}

TEST_CASE("Slurm: 17.3: srun alone makes one job of the step's nodes") {
  const SubmitFolder place;
  const auto result = place.with_slurm(
      "worker='echo rank $RANK of $WORLD_SIZE on node $GROUP_RANK'\n"
      "srun -N2 --ntasks-per-node=1 $DDPRUN --nproc-per-node 2 sh -c \"$worker\"\n"
      "srun -N2 --ntasks-per-node=1 $DDPRUN sh -c 'echo no options, rank $RANK of $WORLD_SIZE'\n"
      "srun -N2 --ntasks-per-node=1 $DDPRUN env\n"
      "srun -N2 --ntasks-per-node=2 $DDPRUN sh -c \"$worker\" || true\n"
      "srun -N1 $DDPRUN --nproc-per-node 2 sh -c \"$worker\"\n"
      // Both run at once, and have the same head.
      "worker='touch $job.$RANK; until [ -e A.0 -a -e A.1 -a -e B.0 -a -e B.1 ]; do sleep 0.05; "
      "done; echo job $job, rank $RANK of $WORLD_SIZE'\n"
      "for job in A B; do\n"
      "  job=$job NPROC=1 srun -N2 --ntasks-per-node=1 scripts/run_node.sh sh -c \"$worker\" &\n"
      "done\nwait\n");
  SKIP_WITHOUT_SLURM(result);
  INFO(result.output);
  CHECK(result.status == 0);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(count_of(result.output, "rank " + std::to_string(rank) + " of 4 on node " +
                                      std::to_string(rank / 2) + "\n") == 1);
  }
  for (const char* rank : {"0", "1"}) {
    CHECK(count_of(result.output, std::string("no options, rank ") + rank + " of 2\n") == 1);
    CHECK(count_of(result.output, std::string("SLURM_NODEID=") + rank + "\n") == 1);
    for (const char* job : {"A", "B"}) {
      CHECK(count_of(result.output, std::string("job ") + job + ", rank " + rank + " of 2\n") == 1);
    }
  }
  CHECK(count_of(result.output, "SLURM_STEP_NODELIST=127.0.0.[1-2]\n") == 2);
  CHECK(contains(result.output, "srun starts ddprun 4 times on 2 nodes"));
  CHECK(contains(result.output, "rank 1 of 2 on node 0\n"));
}

// Slurm sorts the list of such a step by name. All "nodes" of this Slurm are one machine, where any
// address would do: what is taken is looked at, and not whether the nodes meet.
TEST_CASE("Slurm: a step of several components meets on the first one's node") {
  const SubmitFolder place;
  write_program(place.folder / "launcher", "echo \"run_node.sh: $*\"\n");
  const auto result = place.with_slurm(
      "first='-N1 -n1 -w 127.0.0.2' second='-N1 -n1 -w 127.0.0.1'\n"
      "srun -Q $first $DDPRUN env : $second $DDPRUN env\n"
      "salloc -Q $first : $second srun --het-group=0,1 $DDPRUN env\n"
      "salloc -Q $first : $second srun --het-group=1 $DDPRUN env\n"
      "export DDPRUN=$PWD/launcher\n"
      "srun -Q $first scripts/run_node.sh true : $second scripts/run_node.sh true\n");
  SKIP_WITHOUT_SLURM(result);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(count_of(result.output, "address    127.0.0.2 ") == 4);
  CHECK(count_of(result.output, "address    127.0.0.1 ") == 1);
  for (const char* rank : {"0", "1"}) {
    CHECK(count_of(result.output, std::string("run_node.sh: --nnodes 2 --node-rank ") + rank +
                                      " --master-addr 127.0.0.2 ") == 1);
  }
}

TEST_CASE("Slurm: 15.5: srun hands every node's ddprun the secret through its stdin") {
  const SubmitFolder place;
  const auto result = place.with_slurm(
      "unset HOME XDG_CONFIG_HOME\n"
      "(umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' >key)\n"
      "srun -N2 --ntasks-per-node=1 $DDPRUN --auth secret --secret-file - "
      "sh -c 'echo rank $RANK of $WORLD_SIZE, key in descriptor $DDPRUN_SECRET_FD' <key\n");
  SKIP_WITHOUT_SLURM(result);
  INFO(result.output);
  CHECK(result.status == 0);
  for (const char* rank : {"0", "1"}) {
    CHECK(count_of(result.output, std::string("rank ") + rank + " of 2, key in descriptor 3\n") ==
          1);
  }
}

TEST_CASE("Slurm: node.sbatch goes on after it was stopped, under the same number") {
  const SubmitFolder place;
  // The first turn waits to be stopped, the second ends.
  write_program(place.folder / "train",
                "echo \"turn ${SLURM_RESTART_COUNT:-0} rank $RANK of $WORLD_SIZE\"\n"
                "[ \"${SLURM_RESTART_COUNT:-0}\" != 0 ] || exec sleep 300\n");
  const auto result = place.with_slurm(
      "job=$(NPROC=1 sbatch --parsable --cpus-per-task=1 -o out scripts/node.sbatch)\n"
      "until [ \"$(grep -c 'turn 0' out 2>/dev/null)\" = 2 ]; do sleep 0.1; done\n"
      "scancel --signal=TERM $job\n"
      "until [ -z \"$(squeue -h)\" ]; do sleep 0.1; done\n"
      "scontrol show job $job | grep -E 'JobState|Restarts'\ncat out\n");
  SKIP_WITHOUT_SLURM(result);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "; queueing job "));
  CHECK(contains(result.output, "turn 1 rank 0 of 2"));
  CHECK(contains(result.output, "JobState=COMPLETED"));
}

// The element that is stopped is the last one, whose own number is the array's.
TEST_CASE("Slurm: of an array of node.sbatch the element that was stopped goes on alone") {
  const SubmitFolder place;
  write_program(place.folder / "train",
                "echo \"turn ${SLURM_RESTART_COUNT:-0} rank $RANK\"\n"
                "[ \"${SLURM_RESTART_COUNT:-0}\" = 0 ] || exec touch again\n"
                "until [ -e again ]; do sleep 0.1; done\n");
  const auto result = place.with_slurm(
      "job=$(NPROC=1 sbatch --parsable --array=0-1 --cpus-per-task=1 -o %a.out "
      "scripts/node.sbatch)\n"
      "until [ \"$(cat ?.out 2>/dev/null | grep -c 'turn 0')\" = 4 ]; do sleep 0.1; done\n"
      "scancel --signal=TERM ${job}_1\n"
      "until [ -z \"$(squeue -h)\" ]; do sleep 0.1; done\n"
      "scontrol show job $job | grep -oE 'JobState=[A-Z]*'\n"
      "echo BEGIN 1; cat 1.out; echo BEGIN 0; cat 0.out\n");
  SKIP_WITHOUT_SLURM(result);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(count_of(result.output, "JobState=COMPLETED") == 2);
  CHECK(count_of(result.output, "; queueing job ") == 1);
  CHECK(count_of(result.output, "turn 1 rank ") == 2);
  const auto of_other = result.output.find("BEGIN 0");
  REQUIRE(of_other != std::string::npos);
  CHECK_FALSE(contains(result.output.substr(of_other), "turn 1"));
}

// The first job gets its signal a minute before its time is over, as node.sbatch asks for, or up to
// another minute earlier, which is Slurm's own measure; the second goes without one, until Slurm
// ends it, and its workers take their time to stop; the third is cancelled.
TEST_CASE("Slurm: 14.17: node.sbatch goes on in another turn when its time is over") {
  const SubmitFolder place;
  write_program(place.folder / "train",
                "echo \"turn ${SLURM_RESTART_COUNT:-0} rank $RANK of $WORLD_SIZE\"\n"
                "[ \"${SLURM_RESTART_COUNT:-0}\" = 0 ] || exit 0\n"
                "trap 'sleep 2; echo \"rank $RANK saved\"; exit 75' TERM\n"
                "while :; do sleep 0.1; done\n");
  const auto result = place.with_slurm(
      "export NPROC=1\n"
      "submit='sbatch --parsable --time=1 --cpus-per-task=1'\n"
      "early=$($submit -o early.out --time=3 scripts/node.sbatch)\n"
      "late=$($submit -o late.out --signal=CONT@60 scripts/node.sbatch)\n"
      "cancelled=$($submit -o cancelled.out --time=9 scripts/node.sbatch)\n"
      "until [ \"$(grep -sc 'turn 0' cancelled.out)\" = 2 ]; do sleep 0.1; done\n"
      "scancel $cancelled\n"
      "until [ -z \"$(squeue -h)\" ]; do sleep 0.2; done\n"
      "for job in early late cancelled; do\n"
      "  echo BEGIN $job; scontrol show job ${!job} | grep -oE 'JobState=[A-Z]*'; cat $job.out\n"
      "done\n");
  SKIP_WITHOUT_SLURM(result);
  INFO(result.output);
  CHECK(result.status == 0);
  const auto part = [&](const std::string& begin, const std::string& end) {
    const auto from = result.output.find("BEGIN " + begin), to = result.output.find("BEGIN " + end);
    return from == std::string::npos ? "" : result.output.substr(from, to - from);
  };
  const std::string early = part("early", "late"), late = part("late", "cancelled"),
                    cancelled = part("cancelled", "nothing");
  for (const std::string& output : {early, late}) {
    CHECK(contains(output, "JobState=COMPLETED"));
    CHECK(count_of(output, " saved\n") == 2);
    CHECK(count_of(output, "; queueing job ") == 1);
    CHECK(count_of(output, "turn 1 rank ") == 2);
  }
  CHECK(contains(late, "DUE TO TIME LIMIT"));
  CHECK_FALSE(contains(early, "DUE TO TIME LIMIT"));
  CHECK(contains(cancelled, "JobState=CANCELLED"));
  CHECK(count_of(cancelled, " saved\n") == 2);
  CHECK_FALSE(contains(cancelled, "; queueing job "));
}

// Where preemption cancels, Slurm asks for no other turn itself. The second turn is cancelled by
// hand.
TEST_CASE("Slurm: node.sbatch goes on after it made room for another job") {
  const SubmitFolder place;
  write_program(place.folder / "train",
                "echo \"turn ${SLURM_RESTART_COUNT:-0} rank $RANK\"\n"
                "while :; do sleep 0.1; done\n");
  const auto result = place.with_slurm(
      "job=$(NPROC=1 sbatch --parsable --cpus-per-task=1 -o out scripts/node.sbatch)\n"
      "until [ \"$(grep -sc 'turn 0' out)\" = 2 ]; do sleep 0.1; done\n"
      "srun -Q -p urgent -N2 --exclusive true\n"
      "until [ \"$(grep -sc 'turn 1' out)\" = 2 ]; do\n"
      "  scontrol show job $job | grep -qE 'JobState=(PREEMPTED|CANCELLED|FAILED)' && break\n"
      "  sleep 0.1\n"
      "done\n"
      "scancel $job\n"
      "until [ -z \"$(squeue -h)\" ]; do sleep 0.2; done\n"
      "scontrol show job $job | grep -oE 'JobState=[A-Z]*'; cat out\n");
  SKIP_WITHOUT_SLURM(result);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "DUE TO PREEMPTION"));
  CHECK(count_of(result.output, "; queueing job ") == 1);
  CHECK(count_of(result.output, "turn 1 rank ") == 2);
  CHECK(contains(result.output, "JobState=CANCELLED"));
}

TEST_CASE("relay.sbatch takes the next job back by its number alone") {
  const SubmitFolder place;
  auto variables = fake_slurm(place.folder);
  variables["DDPRUN"] = place.folder / "launcher";
  variables["SLURM_JOB_NAME"] = "relay";
  write_program(place.folder / "launcher", "exit 0\n");
  // As where several clusters are known.
  write_program(place.folder / "bin/sbatch", "echo '4712;east'\n");
  write_program(place.folder / "bin/scancel", "echo \"scancel $*\" >>\"$NOTES\"\n");

  const auto result = run_in(place.folder.path(), "relay.sbatch", variables);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(content_of(place.folder / "notes") == "scancel 4712\n");
}

// All processes of the first turn are killed at once, as when its machines lose power: nobody is
// left to ask for another turn, and it waits in the queue.
TEST_CASE("Slurm: 16.1: the next job of relay.sbatch takes over from one that was killed") {
  const SubmitFolder place;
  write_program(place.folder / "train",
                "echo \"turn $RELAY_TURN rank $RANK of $WORLD_SIZE\"\n"
                "[ \"$RELAY_TURN\" != 0 ] || exec sleep 300\n");
  const auto result = place.with_slurm(
      "export NPROC=1 RELAY_TURN=0 RELAY_OPTIONS='--cpus-per-task=1 -o out'\n"
      "job=$(sbatch --parsable $RELAY_OPTIONS scripts/relay.sbatch)\n"
      "until [ \"$(grep -sc 'turn 0' out)\" = 2 ]; do sleep 0.1; done\n"
      "squeue -h -o 'waits: %T %E'\n"
      "for node in 127.0.0.1 127.0.0.2; do\n"
      "  scontrol listpids $job $node | awk 'NR > 1 && $1 > 0 { print $1 }'\n"
      "done | sort -u | xargs kill -KILL || true\n"  // Some end by themselves meanwhile.
      "until [ -z \"$(squeue -h)\" ]; do sleep 0.1; done\n"
      "for turn in 0 1 2; do\n"
      "  scontrol show job $((job + turn)) | grep -oE 'JobState=[A-Z]*' | sed \"s/^/$turn /\"\n"
      "done\ncat out\n");
  SKIP_WITHOUT_SLURM(result);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "waits: PENDING singleton"));
  CHECK(contains(result.output, "0 JobState=FAILED"));
  CHECK(count_of(result.output, "turn 1 rank ") == 2);
  CHECK(contains(result.output, "1 JobState=COMPLETED"));
  // Whose work is done takes the next one back.
  CHECK(contains(result.output, "2 JobState=CANCELLED"));
}

TEST_CASE("Slurm: workers.sbatch and array.sbatch train, with train on PATH") {
  if (!fs::exists(binary("train"))) DDPRUN_SKIP("train is not built");
  const SubmitFolder place;
  std::string options = " --data '' --checkpoint-every 1000";
  const auto words = small_training({"--steps", "4"});
  for (std::size_t i = 1; i < words.size(); ++i) options += " " + words[i];
  const auto result = place.with_slurm(
      "export PATH=" DDPRUN_BIN_DIR
      ":$PATH\n"
      "sbatch --wait -N2 --ntasks-per-node=1 --cpus-per-task=1 -o workers.out "
      "scripts/workers.sbatch" +
      options +
      " || echo failed\n"
      "sbatch --wait --array=0-1 --cpus-per-task=1 -o array_%a.out scripts/array.sbatch" +
      options + " || echo failed\ncat *.out\n");
  SKIP_WITHOUT_SLURM(result);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK_FALSE(contains(result.output, "failed"));
  CHECK(count_of(result.output, "2 ranks on 1 host") == 2);
}

// Slurm is played by fake_srun. The port is made of the job's number: one whose port is free.
TEST_CASE("srun alone makes one job of the step's nodes, or is told why not") {
  int port = 20'000 + ::getpid() % 1'000 * 8;
  while (!is_free(port)) port += 8;
  const std::map<std::string, std::string> step = {
      {"SLURM_JOB_ID", std::to_string((port - 20'000) / 8)}, {"FAKE_NODE_PER_TASK", "1"}};
  const std::vector<std::string> srun = {DDPRUN_SOURCE_DIR "/tests/end_to_end/fake_srun", "-n",
                                         "2"};
  const auto worker = shell("echo \"rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT\"");

  const auto job = run(srun + launch({"--nproc-per-node", "2"}) + worker, 40s, step);
  INFO(job.output);
  CHECK(job.status == 0);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(count_of(job.output, "rank " + std::to_string(rank) +
                                   " of 4 at 127.0.0.1:" + std::to_string(port) + "\n") == 1);
  }

  const auto twice = run(srun + launch({"--nproc-per-node", "2"}) + worker, 40s);  // On one node.
  CHECK(twice.status == 2);
  CHECK(contains(twice.output, "srun starts ddprun 2 times on 1 node"));
}
