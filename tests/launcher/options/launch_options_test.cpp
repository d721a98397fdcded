// The command line, PET_* variables and their precedence.
#include "launcher/options/launch_options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "launcher/machine/this_machine.h"
#include "launcher/membership/endpoint.h"
#include "launcher/options/endpoint_options.h"
#include "launcher/options/help.h"
#include "launcher/options/table.h"
#include "launcher/options/values.h"
#include "tests/testing/as_nobody.h"
#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"
#include "tests/testing/variables.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;

namespace {

using ddprun::testing::check_contains;
using ddprun::testing::lookup_in;
using ddprun::testing::message_of;
using ddprun::testing::Variables;
using Words = std::vector<std::string>;

LaunchOptions parse(const Words& words, Variables variables = {},
                    const std::string& launcher = "/opt/bin/ddprun",
                    const std::string& called = "ddprun") {
  variables.emplace("PATH", "/usr/bin:/bin");
  return parse_options(words, lookup_in(variables), launcher, called);
}

// With a program that is always there.
LaunchOptions options(Words words, const Variables& variables = {}) {
  words.push_back("/bin/true");
  return parse(words, variables);
}

struct Refusal {
  int status = -1;  // -1: accepted.
  std::string text;
};
Refusal refusal(const Words& words, const Variables& variables = {},
                const std::string& launcher = "/opt/bin/ddprun") {
  try {
    parse(words, variables, launcher);
  } catch (const UsageExit& exit) {
    return {exit.status(), exit.what()};
  }
  return {};
}
std::string error_of(Words words, const Variables& variables = {}) {
  words.push_back("/bin/true");
  const Refusal result = refusal(words, variables);
  CHECK(result.status == 2);
  CHECK(result.text.rfind("ddprun: error: ", 0) == 0);
  return result.text;
}

struct Folder {
  std::string file(const std::string& name, int mode = 0644) const {
    std::ofstream(path + "/" + name) << "";
    ::chmod((path + "/" + name).c_str(), static_cast<mode_t>(mode));
    return path + "/" + name;
  }
  ddprun::testing::TemporaryFolder folder;
  const std::string path = folder.path();
};

}  // namespace

TEST_CASE("dashes, underscores, equals signs and spaces mean the same", "[options]") {
  for (const Words& words : std::vector<Words>{{"--nproc-per-node=4"},
                                               {"--nproc_per_node=4"},
                                               {"--nproc-per-node", "4"},
                                               {"--nproc_per_node", "4"},
                                               {"--nproc_per-node=4"}}) {
    CHECK(options(words).nproc_per_node == 4);
  }
}

TEST_CASE("the start of an option will do when it fits one option", "[options]") {
  CHECK(options({"--nproc=2"}).nproc_per_node == 2);
  CHECK(options({"--nproc_p", "2"}).nproc_per_node == 2);
  CHECK(options({"--max", "2"}).max_restarts == 2);
  CHECK(options({"--redirect=3"}).redirects.of(0) == Std::All);
  CHECK(options({"--v"}).virtual_local_rank);  // torchrun's, though ddprun has --version too.
  CHECK(check_contains(error_of({"--master=x"}), "--master-addr, --master-port"));
  CHECK(check_contains(error_of({"--r=1"}), "ambiguous"));
}

TEST_CASE("the last one of an option counts", "[options]") {
  CHECK(options({"--max-restarts=1", "--max_restarts=5"}).max_restarts == 5);
}

TEST_CASE("short options take their value in every usual way", "[options]") {
  for (const Words& words : std::vector<Words>{{"-r", "3"}, {"-r3"}, {"-r=3"}}) {
    CHECK(options(words).redirects.of(7) == Std::All);
  }
  CHECK(options({"-t", "1"}).tee.of(0) == Std::Out);
  CHECK(check_contains(error_of({"-z"}), "unknown option -z"));
}

TEST_CASE("nothing after the program is read as ours", "[options]") {
  const LaunchOptions result =
      parse({"--nproc=2", "/bin/true", "--nproc=8", "-r", "--", "--help", "-x"});
  CHECK(result.nproc_per_node == 2);
  CHECK(result.program == Words{"/bin/true", "--nproc=8", "-r", "--", "--help", "-x"});
  CHECK(result.first_argument == 1);
}

TEST_CASE("two dashes end the options", "[options]") {
  const LaunchOptions result = parse({"--nproc", "2", "--", "/bin/true", "--x"});
  CHECK(result.program == Words{"/bin/true", "--x"});
  CHECK(check_contains(refusal({"--", "--nproc=2"}).text, "--nproc=2 was not found"));
}

TEST_CASE("17.1: a word that several options have chooses none of them", "[options]") {
  const std::string message = error_of({"--restart", "3"});
  INFO(message);
  CHECK(check_contains(message, "--restart is ambiguous"));
  CHECK(check_contains(message, "--restart-backoff"));
  CHECK(check_contains(message, "--max-restarts"));
  CHECK(check_contains(error_of({"--restarts=3"}), "did you mean --max-restarts?"));
  CHECK(options({"--restart-b", "3"}).restart_backoff == std::chrono::seconds(3));
}

TEST_CASE("17.1: other launchers' names for the workers get the one of this", "[options]") {
  for (const char* word : {"-n", "-np", "--nprocs", "--num_processes"}) {
    INFO(word);
    CHECK(check_contains(error_of({word, "4"}), "the workers on this node are --nproc-per-node N"));
  }
}

TEST_CASE("a misspelt option gets a suggestion", "[options]") {
  CHECK(check_contains(error_of({"--nprocs-per-node=2"}), "did you mean --nproc-per-node?"));
  CHECK(check_contains(error_of({"--mastr-port=2"}), "did you mean --master-port?"));
  CHECK(check_contains(error_of({"--learning-rate=2"}), "come after the program"));
}

TEST_CASE("an option without its value says so", "[options]") {
  CHECK(check_contains(refusal({"--nnodes"}).text, "--nnodes needs a value"));
  CHECK(check_contains(error_of({"--nnodes", "--standalone"}), "--standalone follows it"));
  CHECK(check_contains(error_of({"--standalone=1"}), "takes no value"));
  CHECK(check_contains(error_of({"--max-restarts", "-1"}),
                       "--max-restarts=-1: expected a whole number"));
  CHECK(check_contains(error_of({"--omp-threads", "abc"}),
                       "--omp-threads=abc: expected auto, or a whole number of at least 1"));
}

TEST_CASE("the command line wins over PET variables, and these over defaults", "[options]") {
  CHECK(options({}).max_restarts == 0);
  CHECK(options({}, {{"PET_MAX_RESTARTS", "2"}}).max_restarts == 2);
  CHECK(options({"--max-restarts=1"}, {{"PET_MAX_RESTARTS", "2"}}).max_restarts == 1);
  CHECK(check_contains(error_of({}, {{"PET_MAX_RESTARTS", "x"}}), "PET_MAX_RESTARTS=x"));
}

TEST_CASE("a PET variable of a switch is a number", "[options]") {
  CHECK(options({}, {{"PET_STANDALONE", "1"}}).standalone);
  CHECK_FALSE(options({}, {{"PET_STANDALONE", "0"}}).standalone);
  CHECK(check_contains(error_of({}, {{"PET_STANDALONE", "yes"}}), "PET_STANDALONE=yes"));
}

TEST_CASE("every option of the table has a PET variable that is read", "[options]") {
  for (const OptionRow& row : option_table()) {
    if (row.variable().empty()) continue;
    INFO(row.name);
    const bool is_file = row.name == "report" || row.name == "tie-breaker";
    const std::string bad = row.is_flag() ? "maybe" : is_file ? "/" : "\x01";
    const bool is_any_text =
        row.name == "log-dir" || row.name == "log-line-prefix-template" || row.name == "node-check";
    if (is_any_text) continue;
    if (row.name.rfind("duplicate-", 0) == 0) continue;
    CHECK(check_contains(error_of({}, {{row.variable(), bad}}),
                         row.name == "rdzv-id" ? "--rdzv-id" : row.variable()));
  }
}

TEST_CASE("the command that checks a node is any text", "[options]") {
  CHECK(options({}).node_check.empty());
  CHECK(options({"--node-check=none"}).node_check.empty());
  CHECK(options({"--node-check", "a -b"}).node_check == "a -b");
  CHECK(options({}, {{"PET_NODE_CHECK", "a -b"}}).node_check == "a -b");
  CHECK(options({}).node_check_timeout == std::chrono::seconds(30));
  CHECK(options({"--node-check-timeout=0.5"}).node_check_timeout == std::chrono::milliseconds(500));
  CHECK(check_contains(error_of({"--node-check-timeout=0"}), "--node-check-timeout=0"));
}

TEST_CASE("17.2: stalls are looked for and told, and fail what is told to fail", "[options]") {
  CHECK(options({}).stall_watch);
  CHECK_FALSE(options({}).stall_timeout);
  CHECK(options({}).on_stall == OnStall::Auto);
  CHECK(options({"--stall-timeout=300"}).stall_timeout == 300s);
  CHECK(options({"--stall-timeout=0.5", "--on-stall", "fail"}).on_stall == OnStall::Fail);
  CHECK(options({"--stall-timeout=auto", "--on-stall=fail"}).on_stall == OnStall::Fail);
  CHECK_FALSE(options({"--stall-timeout=auto"}).stall_timeout);
  CHECK_FALSE(options({"--stall-timeout=off", "--on-stall=report"}).stall_watch);
  CHECK(options({}, {{"PET_STALL_TIMEOUT", "60"}, {"PET_ON_STALL", "fail"}}).on_stall ==
        OnStall::Fail);
  CHECK(options({"--on-stall=report"}).on_stall == OnStall::Report);
  CHECK_FALSE(options({"--stall-timeout=off", "--on-stall=auto"}).stall_watch);
  CHECK(check_contains(error_of({"--stall-timeout=off", "--on-stall=fail"}),
                       "--stall-timeout=off looks for"));
  CHECK(check_contains(error_of({"--stall-timeout=0"}), "--stall-timeout=0"));
  CHECK(check_contains(error_of({"--stall-timeout=never"}), "seconds"));
  CHECK(check_contains(error_of({"--on-stall=kill"}), "report"));
}

TEST_CASE("17.2: pages are served to this machine alone, unless an address is given", "[options]") {
  const auto place = [](const std::string& text) {
    return options({"--metrics-port", text}).metrics_port.value();
  };
  CHECK(place("9400").host == "127.0.0.1");
  CHECK(place("9400").port == 9400);
  CHECK(place("0.0.0.0:0").host == "0.0.0.0");
  CHECK(place("[::1]:80").host == "::1");
  CHECK(place("65535").port == 65535);
  CHECK(options({"--status-page=9401"}).status_page.value().port == 9401);
  CHECK_FALSE(options({}).status_page.has_value());
  for (const char* bad : {"", "x", "65536", "-1", "9400x", ":9400", "host:9400", "1.2.3.4:", "::1",
                          "[::1:80", "::1]:80"}) {
    INFO(bad);
    CHECK(check_contains(error_of({std::string("--status-page=") + bad}), "PORT or ADDRESS:PORT"));
  }
}

TEST_CASE("nodes are a number or a range", "[options]") {
  CHECK(options({"--nnodes=3"}).nnodes_min == 3);
  const LaunchOptions elastic = options({"--nnodes=2:4", "--rdzv-backend=c10d"});
  CHECK(elastic.nnodes_min == 2);
  CHECK(elastic.nnodes_max == 4);
  const LaunchOptions fixed = options({"--nnodes=2:4"});  // static takes the maximum.
  CHECK(fixed.nnodes_min == 4);
  CHECK(fixed.notes.size() == 1);
  for (const char* bad : {"", "0", "-1", "2:1", "1:2:3", ":", "1:", "x", "1.5", "99999999999"}) {
    CHECK(check_contains(error_of({std::string("--nnodes=") + bad}), "MIN:MAX"));
  }
}

TEST_CASE("16.1: who may take over is decided by the kind of job, unless it is said", "[options]") {
  const auto can = [](std::vector<std::string> more) {
    more.insert(more.begin(), "--nnodes=3");
    return may_be_taken_over(options(more));
  };
  const std::string elastic = "--rdzv-backend=c10d", there = "--rdzv-endpoint=host:1";
  CHECK(can({elastic, there}));
  CHECK_FALSE(can({elastic, there, "--rdzv-conf=takeover=false"}));
  CHECK_FALSE(can({"--master-addr=host"}));
  CHECK(can({"--master-addr=host", "--rdzv-conf=takeover=true"}));
  // Two nodes have no majority.
  CHECK_FALSE(may_be_taken_over(options({"--nnodes=2", "--rdzv-conf=takeover=true"})));
  const LaunchOptions two =
      options({"--nnodes=2", "--rdzv-conf=takeover=true", "--tie-breaker=/tmp/tie"});
  CHECK(two.notes.empty());
  CHECK(may_be_taken_over(two));
}

TEST_CASE("a tie-breaker is a file, for jobs whose nodes may change", "[options]") {
  const LaunchOptions elastic = options(
      {"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=host:1", "--tie-breaker=/tmp/tie"});
  CHECK(elastic.tie_breaker == "/tmp/tie");
  CHECK(elastic.notes.empty());
  const LaunchOptions fixed = options({"--nnodes=2", "--tie-breaker=/tmp/tie"});
  CHECK(fixed.tie_breaker.empty());
  REQUIRE(fixed.notes.size() == 1);
  CHECK(check_contains(fixed.notes.front(),
                       "--tie-breaker=/tmp/tie has no effect without --rdzv-backend=c10d"));
  CHECK(check_contains(error_of({"--nnodes=2", "--tie-breaker=/tmp/"}), "--tie-breaker"));
}

TEST_CASE("nodes may meet in an etcd, as torchrun's users name one", "[options]") {
  const auto with = [](const Words& more, const Variables& variables = {}) {
    Words words = {"--nnodes=1:3", "--rdzv-backend=etcd-v2"};
    words.insert(words.end(), more.begin(), more.end());
    return options(words, variables);
  };
  const LaunchOptions plain = with({"--rdzv-endpoint=host", "--master-port=1"});
  CHECK(meets_in_etcd(plain));
  CHECK(plain.backend == RendezvousBackend::C10d);
  CHECK(plain.etcd.urls == Words{"http://host:2379"});
  const LaunchOptions sealed =
      with({"--rdzv-endpoint=[::1]:5", "--rdzv-conf=protocol=https,cacert=/ca,cert=/c,key=/k"},
           {{"ETCDCTL_CACERT", "/another"}});
  CHECK(sealed.etcd.urls == Words{"https://[::1]:5"});
  CHECK(sealed.etcd.authority_file == "/ca");
  CHECK(sealed.etcd.certificate_file == "/c");
  CHECK(sealed.etcd.key_file == "/k");
  CHECK(sealed.notes.empty());
  CHECK(with({"--rdzv-endpoint=host"}, {{"ETCDCTL_CACERT", "/ca"}}).etcd.authority_file == "/ca");

  const LaunchOptions tie = with({"--rdzv-endpoint=host", "--tie-breaker=http://other:1"});
  CHECK(meets_in_etcd(tie));
  CHECK(tie.etcd.urls == Words{"http://host:2379"});
  REQUIRE(tie.notes.size() == 1);
  CHECK(check_contains(tie.notes.front(), "which is one itself"));
  const LaunchOptions alone = options({"--rdzv-backend=etcd", "--rdzv-endpoint=host"});
  CHECK_FALSE(meets_in_etcd(alone));
  CHECK_FALSE(alone.etcd.any());
  CHECK(alone.endpoint_host == "127.0.0.1");
  REQUIRE(alone.notes.size() == 1);
  CHECK_FALSE(meets_in_etcd(options({"--standalone", "--rdzv-backend=etcd"})));

  const auto error_with = [](const std::string& option) {
    return error_of({"--nnodes=1:3", "--rdzv-backend=etcd", option});
  };
  CHECK(check_contains(error_with("--node-rank=0"), "needs --rdzv-endpoint=HOST:2379"));
  CHECK(check_contains(error_of({"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=h",
                                 "--rdzv-conf=protocol=ftp"}),
                       "https"));
  CHECK(check_contains(error_of({"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=h",
                                 "--rdzv-conf=takeover=false"}),
                       "takeover=false"));
}

TEST_CASE("torchrun's store in a file is refused by its name, not by the endpoint's", "[options]") {
  const std::string error = error_of({"--nnodes=2", "--rdzv-backend=c10d",
                                      "--rdzv-conf=store_type=file", "--rdzv-endpoint=/shared/r"});
  CHECK(check_contains(error, "--rdzv-conf=store_type=file: nodes do not meet in a file"));
  CHECK(options({"--nnodes=2", "--rdzv-conf=store_type=file"}).endpoint_port == 29500);
}

TEST_CASE("a tie-breaker may be an etcd, as etcdctl names one", "[options]") {
  const auto with = [](const std::string& servers, const Variables& variables = {}) {
    return options({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=host:1",
                    "--tie-breaker=" + servers},
                   variables);
  };
  CHECK_FALSE(with("/tmp/tie").etcd.any());
  const LaunchOptions two =
      with("http://a:2379/,https://[::1]:2379",
           {{"ETCDCTL_CACERT", "/ca"}, {"ETCDCTL_CERT", "/c"}, {"ETCDCTL_KEY", "/k"}});
  CHECK(two.etcd.urls == std::vector<std::string>{"http://a:2379", "https://[::1]:2379"});
  CHECK(two.etcd.authority_file == "/ca");
  CHECK(two.etcd.certificate_file == "/c");
  CHECK(two.etcd.key_file == "/k");
  CHECK(two.tie_breaker.empty());
  CHECK_FALSE(options({"--nnodes=2", "--tie-breaker=http://a:2379"}).etcd.any());
  for (const char* bad : {"http://", "ftp://a:1", "http://a:1,", "http://a:1/v3", "http://u:p@a:1",
                          "http://a:1,/tmp/tie", "etcd://a:1"}) {
    INFO(bad);
    CHECK(check_contains(error_of({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=host:1",
                                   std::string("--tie-breaker=") + bad}),
                         "http://HOST:2379"));
  }
}

TEST_CASE("workers per node may be counted", "[options]") {
  CHECK(options({"--nproc=cpu"}).nproc_per_node == usable_cpus());
  const Folder dev;
  for (const char* name : {"nvidia0", "nvidia1", "nvidia2", "nvidia3"}) dev.file(name);
  for (const char* text : {"gpu", "auto"}) {
    const GivenOption given{text, std::string("--nproc=") + text};
    CHECK(parse_nproc(given, lookup_in(Variables{{"CUDA_VISIBLE_DEVICES", "3,1"}}), dev.path) == 2);
  }
  const Variables none = {{"CUDA_VISIBLE_DEVICES", ""}};
  CHECK(options({"--nproc=auto"}, none).nproc_per_node == usable_cpus());
  CHECK(check_contains(error_of({"--nproc=gpu"}, none), "no GPU is visible"));
  for (const char* bad : {"0", "-1", "xpu", "two", ""}) {
    CHECK(check_contains(error_of({std::string("--nproc-per-node=") + bad}), "auto, cpu or gpu"));
  }
}

TEST_CASE("16.3: a node may go on with fewer workers than it starts", "[options]") {
  CHECK(options({"--nproc-per-node=4"}).nproc_min == 4);
  const LaunchOptions range = options({"--nproc-per-node=2:4", "--max-restarts=1"});
  CHECK(range.nproc_min == 2);
  CHECK(range.nproc_per_node == 4);
  const LaunchOptions counted = options({"--nproc=1:cpu", "--max-restarts=1"});
  CHECK(counted.nproc_per_node == usable_cpus());
  CHECK(counted.nproc_min == 1);
  for (const char* bad : {"0:2", "3:2", ":2", "x:2"}) {
    CHECK(check_contains(error_of({std::string("--nproc-per-node=") + bad}),
                         "MIN from 1 to MAX, which is 2"));
  }
  CHECK(check_contains(error_of({"--nproc-per-node=1:2:3"}), "expected"));
  const LaunchOptions for_nothing = options({"--nproc-per-node=1:2"});
  CHECK(for_nothing.nproc_min == 2);
  REQUIRE(for_nothing.notes.size() == 1);
  CHECK(check_contains(for_nothing.notes.front(), "without --max-restarts"));
}

TEST_CASE("GPUs are counted without asking CUDA", "[options]") {
  const Folder dev;
  for (const char* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"}) {
    dev.file(name);
  }
  CHECK(count_gpus(std::nullopt, dev.path) == 3);
  CHECK(count_gpus(std::nullopt, "/no/such") == 0);
  CHECK(count_gpus("0,1", dev.path) == 2);
  CHECK(count_gpus("0,1,2,3,4,5,6,7", dev.path) == 3);  // As torch: up to the first that is not.
  CHECK(count_gpus("0,7,1", dev.path) == 1);
  CHECK(count_gpus("0,1", "/no/such") == 0);
  CHECK(count_gpus("GPU-8932f937-d72c", "/no/such") == 0);
  CHECK(count_listed_gpus("0,7") == 2);
  CHECK(count_listed_gpus("3rd,1") == 2);
  CHECK(count_listed_gpus("0,,1") == 1);
  CHECK(count_gpus("GPU-8932f937-d72c, GPU-1", dev.path) == 2);
  CHECK(count_gpus("MIG-8932f937-d72c", dev.path) == 1);
  CHECK(count_gpus("1,-1,2", dev.path) == 1);  // CUDA ignores what follows a bad entry.
  CHECK(count_gpus("GPU-8932f937-d72c,1", dev.path) == 1);
  CHECK(count_gpus("0,foo,1", dev.path) == 1);
  CHECK(count_gpus("0,1,0", dev.path) == 0);
  for (const char* none : {"", "-1", "NoDevFiles", "none", "void"}) {
    CHECK(count_gpus(none, dev.path) == 0);
    CHECK(check_contains(error_of({"--nproc-per-node=gpu"}, {{"CUDA_VISIBLE_DEVICES", none}}),
                         "names none"));
  }
}

TEST_CASE("a GPU that cannot be counted is not taken for none", "[options]") {
  const Folder dev;
  dev.file("dxg");
  const auto workers = [&](const std::string& text, const Variables& variables = {}) {
    return parse_nproc({text, "--nproc-per-node=" + text}, lookup_in(variables), dev.path);
  };
  CHECK(check_contains(message_of<std::exception>([&] { workers("auto"); }),
                       "there is a GPU (" + dev.path + "/dxg)"));
  CHECK(check_contains(message_of<std::exception>([&] { workers("gpu"); }), "give a number"));
  CHECK(workers("gpu", {{"CUDA_VISIBLE_DEVICES", "0,1"}}) == 2);
  CHECK(workers("cpu") > 0);
}

TEST_CASE("where ROCm's driver is GPUs are counted by the list that ROCm heeds", "[options]") {
  const Folder dev;
  const auto workers = [&](const Variables& variables) {
    return parse_nproc({"gpu", "--nproc-per-node=gpu"}, lookup_in(variables), dev.path);
  };
  dev.file("kfd");
  CHECK(workers({{"HIP_VISIBLE_DEVICES", "0,1,2"}, {"CUDA_VISIBLE_DEVICES", "0"}}) == 3);
  CHECK(workers({{"HIP_VISIBLE_DEVICES", ""}, {"CUDA_VISIBLE_DEVICES", "0"}}) == 1);
  CHECK(workers({{"ROCR_VISIBLE_DEVICES", "4,5"}}) == 2);
  CHECK(workers({{"ROCR_VISIBLE_DEVICES", "4,5"}, {"HIP_VISIBLE_DEVICES", "1"}}) == 1);
  CHECK(check_contains(message_of<std::exception>([&] {
                         workers({{"HIP_VISIBLE_DEVICES", "-1"}});
                       }),
                       "HIP_VISIBLE_DEVICES=\"-1\" names none"));
  CHECK(check_contains(message_of<std::exception>([&] { workers({}); }),
                       "name the GPUs in CUDA_VISIBLE_DEVICES"));

  dev.file("nvidia0");  // PyTorch for CUDA does not look at HIP's.
  CHECK(workers({{"HIP_VISIBLE_DEVICES", "-1"}, {"CUDA_VISIBLE_DEVICES", "0"}}) == 1);
}

TEST_CASE("the node rank is checked against the number of nodes", "[options]") {
  CHECK(options({"--nnodes=2", "--node_rank", "1"}).node_rank == 1);
  CHECK(options({"--nnodes=2", "--node_rank=1"}).node_rank_given);
  CHECK(check_contains(error_of({"--nnodes=2", "--node-rank=2"}), "expected 0..1"));
  // With c10d it stands by when it is one too many, as torchrun takes it.
  CHECK(options({"--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "--node-rank=5"})
            .node_rank == 5);
}

TEST_CASE("one node gets a free port, several meet on the usual one", "[options]") {
  CHECK(options({}).endpoint_port == 0);
  CHECK(options({}).is_host == true);
  CHECK(options({"--master-port=1234"}).endpoint_port == 1234);
  CHECK(options({"--nnodes=2"}).endpoint_port == 29500);
  CHECK(options({"--nnodes=2", "--node-rank=1"}).is_host == false);
  CHECK(options({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node0"}).endpoint_port ==
        29400);
  CHECK_FALSE(options({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node0"}).is_host);
  CHECK(check_contains(error_of({"--nnodes=2", "--master-port=0"}), "free port"));
  CHECK(check_contains(error_of({"--master-port=65536"}), "65535"));
}

TEST_CASE("endpoints are host, host and port, or IPv6 in brackets", "[options]") {
  const auto endpoint = [](const std::string& text) {
    return options({"--nnodes=2", "--rdzv-endpoint=" + text});
  };
  CHECK(endpoint("node-0.local:1").endpoint_host == "node-0.local");
  CHECK(endpoint("node-0.local:1").endpoint_port == 1);
  CHECK(endpoint("node_0:65535").endpoint_port == 65535);
  CHECK(endpoint("[::1]:99").endpoint_host == "::1");
  CHECK(endpoint("[::1]:99").endpoint_port == 99);
  CHECK(endpoint("[fe80::1]").endpoint_port == 29500);
  CHECK(endpoint("::1").endpoint_host == "::1");
  for (const char* bad :
       {":1", "a:b", "a:1:2", "[::1", "[::1]x", "[::1]x9", "[x]:1", "a b", "a:65536", "-a"}) {
    CHECK(check_contains(error_of({"--nnodes=2", std::string("--rdzv-endpoint=") + bad}),
                         "expected"));
  }
  // It could never be listened on.
  for (const char* zoned : {"[fe80::1%eth0]:29500", "fe80::1%eth0"}) {
    CHECK(check_contains(error_of({"--nnodes=2", std::string("--rdzv-endpoint=") + zoned}),
                         "expected an address without a zone"));
  }
  CHECK(options({"--master-addr=[::1]"}).endpoint_host == "::1");
  CHECK(check_contains(error_of({"--master-addr=a:1"}), "--master-port"));
}

TEST_CASE("who may come to the store is named by addresses and networks", "[options]") {
  CHECK(options({"--store-allow= 10.0.0.7,10.1.0.0/16 "}).store_allow ==
        std::vector<std::string>{"10.0.0.7", "10.1.0.0/16"});
  CHECK(options({"--store-allow="}).store_allow.empty());
  CHECK(check_contains(error_of({"--store-allow=10.0.0.7,node1"}), "but found \"node1\""));
}

TEST_CASE("the rendezvous endpoint wins over the master address, and says so", "[options]") {
  const LaunchOptions result =
      options({"--nnodes=2", "--rdzv-endpoint=a:1", "--master-addr=b", "--master-port=2"});
  CHECK(result.endpoint_host == "a");
  CHECK(result.endpoint_port == 1);
  CHECK(result.notes.size() == 2);
}

TEST_CASE("standalone is one node with a free port and its own id", "[options]") {
  const LaunchOptions result = options({"--standalone", "--master-port=5"});
  CHECK(result.endpoint_port == 0);
  CHECK(result.backend == RendezvousBackend::C10d);
  CHECK(result.run_id.size() == 36);
  CHECK(result.run_id != options({"--standalone"}).run_id);
  CHECK(result.notes.size() == 1);
  CHECK(check_contains(error_of({"--standalone", "--nnodes=2"}), "--standalone is for one node"));
}

TEST_CASE("the job's id", "[options]") {
  CHECK(options({}).run_id == "none");
  CHECK(options({"--rdzv-id=7"}).run_id == "7");
  CHECK(options({"--rdzv-id="}).run_id.size() == 36);
  CHECK(check_contains(error_of({"--rdzv-id=a/b"}), "--rdzv-id"));
  CHECK(options({"--rdzv-id=a\xc3\xa9"}).run_id == "a\xc3\xa9");
  CHECK(check_contains(error_of({"--rdzv-id=a\xff"}), "--rdzv-id"));
}

TEST_CASE("the rendezvous configuration", "[options]") {
  const LaunchOptions result = options({"--rdzv-conf",
                                        "'join_timeout=5,last_call_timeout=0,start_timeout=7,keep_"
                                        "alive_interval=2,read_timeout=9,is_host=True'"});
  CHECK(result.join_timeout == 5s);
  CHECK(result.last_call_timeout == 0s);
  CHECK(result.start_timeout == 7s);
  CHECK(result.heartbeat_interval == 2s);
  CHECK(result.heartbeat_timeout == 6s);
  CHECK(result.is_host == true);
  CHECK(check_contains(result.notes.at(0), "read_timeout has no effect"));
  CHECK(options({"--rdzv-conf=timeout=7"}).join_timeout == 7s);
  CHECK(options({"--rdzv-conf=\"timeout=7\""}).join_timeout == 7s);
  CHECK(options({"--rdzv-conf="}).join_timeout == options({}).join_timeout);
  CHECK(options({"--rdzv-conf=heartbeat_timeout=0.5"}).heartbeat_interval < 500ms);
  for (const char* bad : {"x", "a=", "=b", "join_timeout=0", "join_timeout=x", "join_timeout=-1",
                          "is_host=perhaps", "keep_alive_interval=1,keep_alive_max_attempt=1"}) {
    CHECK(check_contains(error_of({std::string("--rdzv-conf=") + bad}), "expected"));
  }
}

TEST_CASE("heartbeats come from torchrun's words or ours", "[options]") {
  const HeartbeatPace usual{5s, 15s};
  const struct {
    HeartbeatWords words;
    HeartbeatPace pace;
  } rows[] = {
      {{}, {5s, 15s}},
      {{.interval = 2s}, {2s, 6s, 3}},
      {{.timeout = 60s}, {5s, 60s}},
      {{.timeout = 6s}, {2s, 6s}},  // Three must fit into it.
      {{.attempts = 4}, {5s, 20s, 4}},
      {{.interval = 200ms, .timeout = 1s}, {200ms, 1s}},
      {{.interval = 5s, .timeout = 5s}, {5s, 15s, 3}},  // torchrun's: it limits a call.
      {{.interval = 5s, .timeout = 10s, .attempts = 20}, {5s, 100s, 20}},
      {{.timeout = 9s, .attempts = 4}, {5s, 20s, 4}},
      {{.interval = 1s, .attempts = 1}, {1s, 1s, 1}},  // Refused by who asks.
  };
  for (const auto& [words, pace] : rows) {
    const HeartbeatPace settled = settle_heartbeat(words, usual);
    INFO(pace.interval.count() << " " << pace.timeout.count());
    CHECK(settled.interval == pace.interval);
    CHECK(settled.timeout == pace.timeout);
    CHECK(settled.lost_after == pace.lost_after);
  }
}

TEST_CASE("keys of torchrun's configuration mean what they mean there", "[options]") {
  // Its defaults, said aloud: a node is lost after three times five seconds.
  const LaunchOptions usual =
      options({"--rdzv-conf=heartbeat_timeout=5,keep_alive_interval=5,keep_alive_max_attempt=3"});
  CHECK(usual.heartbeat_timeout == 15s);
  CHECK(check_contains(usual.notes.at(0),
                       "heartbeat_timeout has no effect: a node counts as lost after 3"));
  CHECK(options({"--rdzv-conf=heartbeat_timeout=5,keep_alive_interval=5"}).heartbeat_timeout ==
        15s);
  CHECK(
      options({"--rdzv-conf=heartbeat_timeout=10,keep_alive_interval=5,keep_alive_max_attempt=20"})
          .heartbeat_timeout == 100s);
  // Agents are told of it in an int of milliseconds.
  CHECK(options({"--rdzv-conf=heartbeat_timeout=1000000"}).heartbeat_timeout == 1'000'000s);
  for (const char* too_long :
       {"heartbeat_timeout=1000001", "keep_alive_interval=9000000,keep_alive_max_attempt=1000"}) {
    CHECK(check_contains(error_of({std::string("--rdzv-conf=") + too_long}),
                         "expected at most 1000000 s"));
  }
  CHECK(check_contains(error_of({"--rdzv-conf=join_timeout=20000000"}), "and at most 10000000"));
  // Without a number of attempts it is ours.
  const LaunchOptions ours = options({"--rdzv-conf=heartbeat_timeout=1,keep_alive_interval=0.2"});
  CHECK(ours.heartbeat_timeout == 1s);
  CHECK(ours.notes.empty());
  const LaunchOptions both = options({"--rdzv-conf=timeout=900,join_timeout=7200"});
  CHECK(both.join_timeout == 7200s);
  CHECK(check_contains(both.notes.at(0), "timeout has no effect beside join_timeout"));
}

TEST_CASE("redirects and tee are a number or a map of any width", "[options]") {
  CHECK(options({}).redirects.of(0) == Std::None);
  const StdMap map = options({"--tee", "0-3:1,12:3,5:0"}).tee;
  CHECK(map.of(0) == Std::Out);
  CHECK(map.of(3) == Std::Out);
  CHECK(map.of(4) == Std::None);
  CHECK(map.of(12) == Std::All);
  for (const char* bad : {"4", "0:1,", "11", "0:1,1", "1,0:1", "0:4", "-1:1", "3-1:1", "0:1,0:2",
                          "", "0-99999999:1", "a:1"}) {
    CHECK(check_contains(error_of({std::string("--redirects=") + bad}), "expected"));
  }
}

TEST_CASE("the filter of local ranks", "[options]") {
  CHECK(options({"--local-ranks-filter=0,4-6"}).local_ranks_filter == std::set<int>{0, 4, 5, 6});
  CHECK(options({"--local_ranks_filter="}).local_ranks_filter.empty());
  CHECK(check_contains(error_of({"--local-ranks-filter=x"}), "local ranks"));
}

TEST_CASE("filters are texts between commas, and two commas are one", "[options]") {
  const LaunchOptions result =
      options({"--duplicate-stdout-filters", "apple,a,,b,", "--duplicate_stderr_filters=,,,"});
  CHECK(result.stdout_filters == Words{"apple", "a,b", ""});
  CHECK(result.stderr_filters == Words{",", ""});
  CHECK(options({"--duplicate-stdout-filters="}).stdout_filters.empty());
  CHECK(options({}, {{"PET_DUPLICATE_STDOUT_FILTERS", "x"}}).stdout_filters == Words{"x"});
}

TEST_CASE("log files are cut at a size with or without a unit", "[options]") {
  const auto bytes = [](const std::string& size) {
    return options({"--log-rotate", size, "--log-keep=all"}).log_rotation.bytes_max;
  };
  CHECK(options({}).log_rotation.bytes_max == 0);
  CHECK(bytes("5000") == 5000);
  CHECK(bytes("64M") == 64u << 20);
  CHECK(bytes("8kb") == 8192);
  CHECK(bytes("2GiB") == std::size_t{2} << 30);
  CHECK(options({"--log-rotate=1G", "--log-keep=3"}).log_rotation.keep == 3);
  CHECK(options({"--log-rotate=1G"}).log_rotation.keep == -1);
  CHECK(check_contains(options({"--log-keep=3"}).notes.at(0), "no effect without --log-rotate"));
  for (const char* bad : {"", "M", "-1M", "64X", "64MX", "1.5G", "64 M", "100", "9999999999T"}) {
    CHECK(check_contains(error_of({std::string("--log-rotate=") + bad}),
                         "a size of at least 4096 bytes"));
  }
  CHECK(check_contains(error_of({"--log-rotate=1G", "--log-keep=-1"}), "whole number"));
}

TEST_CASE("how the console looks", "[options]") {
  CHECK(options({}).color == ColorWhen::Auto);
  CHECK(options({"--color=always"}).color == ColorWhen::Always);
  CHECK(options({"--color", "never"}).color == ColorWhen::Never);
  CHECK(check_contains(error_of({"--color=yes"}), "always"));
  CHECK(options({"--collapse-output"}).collapse_output);
  CHECK(options({"--log-line-prefix-template=${rank}:"}).notes.empty());
  const std::string misspelt = "there are ${role_name}, ${rank}";
  CHECK(check_contains(options({"--log-line-prefix-template=${rnak}:"}).notes.at(0), misspelt));
  CHECK(check_contains(
      options({}, {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "$rnak"}}).notes.at(0), misspelt));
  CHECK(options({"--pty"}).pty);
  CHECK_FALSE(options({}).collapse_output);
  CHECK_FALSE(options({}).pty);
}

TEST_CASE("the log folder may not be a file, and /dev/null means none", "[options]") {
  const Folder folder;
  CHECK(options({"--log-dir=" + folder.path}).log_dir == folder.path);
  CHECK(check_contains(error_of({"--log-dir=" + folder.file("x")}), "expected a folder"));
  const LaunchOptions none = options({"--log-dir=/dev/null", "--tee=3"});
  CHECK(none.log_dir.empty());
  CHECK(none.tee.of(0) == Std::None);
  // Workers may change their folder before they open what is in it.
  CHECK(options({"--log-dir=logs"}).log_dir == (std::filesystem::current_path() / "logs").string());
}

TEST_CASE("signals have names with or without SIG, or numbers", "[options]") {
  CHECK(options({}).signals_to_handle == std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  CHECK(options({"--signals-to-handle=sigusr1,TERM,10"}).signals_to_handle ==
        std::vector<int>{SIGUSR1, SIGTERM});
  CHECK(options({"--signals-to-handle="}).signals_to_handle.empty());
  CHECK(check_contains(error_of({"--signals-to-handle=SIGFOO"}), "SIGFOO"));
  for (const char* unseen : {"SIGKILL", "SIGSTOP"}) {
    CHECK(check_contains(error_of({std::string("--signals-to-handle=") + unseen}),
                         std::string("can handle, which ") + unseen + " is not"));
  }
  for (const char* own : {"SIGCHLD", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"}) {
    CHECK(check_contains(error_of({std::string("--signals-to-handle=") + own}),
                         std::string("signals from outside; ") + own));
  }
}

TEST_CASE("the shutdown time has an option and two variables", "[options]") {
  CHECK(options({}).shutdown_timeout == 30s);
  CHECK(options({}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}}).shutdown_timeout == 9s);
  CHECK(options({"--shutdown-timeout=0"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}})
            .shutdown_timeout == 0s);
  CHECK(options({"--shutdown-timeout=0.5"}).shutdown_timeout == 500ms);
  CHECK(check_contains(error_of({"--shutdown-timeout=-1"}), "at least 0"));
  CHECK(check_contains(error_of({"--shutdown-timeout=nan"}), "seconds"));
  CHECK(check_contains(error_of({"--shutdown-timeout=5s"}), "seconds"));
  CHECK(check_contains(error_of({"--shutdown-timeout=1e999"}), "seconds"));
}

TEST_CASE("options without a use here are checked, and refused with a reason if unknown",
          "[options]") {
  CHECK_NOTHROW(options({"--monitor-interval=0.1", "--start-method=fork", "--logs-specs=default",
                         "--event-log-handler=null", "--use-env"}));
  CHECK(check_contains(error_of({"--start-method=thread"}), "spawn, fork, forkserver"));
  CHECK(check_contains(error_of({"--logs-specs=mine"}), "default"));
  for (const char* handler : {"console", "dynamic_rendezvous"}) {
    const LaunchOptions accepted = options({std::string("--event-log-handler=") + handler});
    REQUIRE(accepted.notes.size() == 1);
    CHECK(check_contains(accepted.notes[0], std::string(handler) + " has no effect"));
  }
  CHECK(
      check_contains(error_of({"--event-log-handler=mine"}), "null, console, dynamic_rendezvous"));
  const LaunchOptions timed = options({}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}});
  REQUIRE(timed.notes.size() == 1);
  CHECK(check_contains(timed.notes[0], "no timer server"));
  CHECK(check_contains(error_of({"--nproc-per-node=100000"}), "at most 4096"));
  CHECK(check_contains(error_of({"--nnodes=100000"}), "MAX <= 65536"));
  CHECK(check_contains(error_of({"--rdzv-backend=c10"}), "did you mean c10d?"));
  CHECK(check_contains(error_of({"--exit-barrier-timeout=-1"}), "seconds, at least 0"));
  CHECK_NOTHROW(options({"--exit-barrier-timeout=60"}));
  CHECK(check_contains(error_of({}, {{"PET_EXIT_BARRIER_TIMEOUT", "x"}}),
                       "PET_EXIT_BARRIER_TIMEOUT=x"));
  CHECK(check_contains(error_of({}, {{"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", "x"}}),
                       "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=x"));
  CHECK(check_contains(error_of({"--monitor-interval=x"}), "seconds"));
}

TEST_CASE("workers may be bound to CPUs in four ways", "[options]") {
  CHECK(options({}).numa_binding == NumaBinding::None);
  CHECK(options({"--numa-binding=node"}).numa_binding == NumaBinding::Node);
  CHECK(options({"--numa_binding", "socket"}).numa_binding == NumaBinding::Socket);
  CHECK(options({"--numa-binding=core-complex"}).numa_binding == NumaBinding::CoreComplex);
  CHECK(options({}, {{"PET_NUMA_BINDING", "exclusive"}}).numa_binding == NumaBinding::Exclusive);
  CHECK(check_contains(error_of({"--numa-binding=core_complex"}), "did you mean core-complex?"));
}

TEST_CASE("a store of the workers' own is for the c10d backend, as in torchrun", "[options]") {
  const Variables variables = {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}};
  CHECK(options({"--standalone"}, variables).worker_store);
  CHECK(options({"--rdzv-backend=c10d"}, variables).worker_store);
  CHECK_FALSE(options({"--standalone"}).worker_store);
  const LaunchOptions plain = options({}, variables);
  CHECK_FALSE(plain.worker_store);
  REQUIRE(plain.notes.size() == 1);
  CHECK(check_contains(plain.notes[0], "no effect without --rdzv-backend=c10d"));
}

TEST_CASE("under its second name the local rank is passed, as in torch.distributed.launch",
          "[options]") {
  const auto passes = [](Words words, const Variables& variables, const std::string& called) {
    words.push_back("/bin/true");
    return parse(words, variables, "/opt/bin/ddprun", called).local_rank_argument;
  };
  CHECK_FALSE(passes({}, {}, "ddprun"));
  CHECK(passes({"--pass-local-rank"}, {}, "ddprun"));
  CHECK(passes({}, {}, "ddprun-launch"));
  CHECK(passes({"--pass-local-rank"}, {}, "ddprun-launch"));
  CHECK_FALSE(passes({"--use-env"}, {}, "ddprun-launch"));
  CHECK_FALSE(passes({}, {{"PET_USE_ENV", "1"}}, "ddprun-launch"));
}

TEST_CASE("a Python file is run by Python, anything else directly", "[options]") {
  const Folder folder;
  const std::string script = folder.file("x.py"), binary = folder.file("x", 0755);
  const std::string python = folder.file("python-mine", 0755);
  const Variables variables = {{"PYTHON_EXEC", python}};
  const LaunchOptions result = parse({script, "a"}, variables);
  CHECK(result.program == Words{python, "-u", script, "a"});
  CHECK(result.first_argument == 3);
  CHECK(result.program_name == script);
  CHECK(parse({"-m", "pkg.mod", "a"}, variables).program ==
        Words{python, "-u", "-m", "pkg.mod", "a"});
  CHECK(parse({"--run-path", binary}, variables).program == Words{python, "-u", binary});
  CHECK(parse({binary, "a"}, variables).program == Words{binary, "a"});
  ::chmod(script.c_str(), 0755);
  CHECK(parse({"--no-python", script}, variables).program == Words{script});
  CHECK(check_contains(refusal({"-m", "--no-python", "x"}).text, "--no-python"));
  CHECK(check_contains(refusal({"/no/such.py"}).text, "/no/such.py was not found"));
  // A wrapper may know a place that is not here: a container's.
  CHECK(parse({"/no/such.py"}, variables).program == Words{python, "-u", "/no/such.py"});
}

TEST_CASE("what Python runs besides .py files is run by Python", "[options]") {
  const Folder folder;
  const std::string python = folder.file("python-mine", 0755);
  const Variables variables = {{"PYTHON_EXEC", python}};
  for (const char* name : {"X.PY", "x.pyc", "x.pyz"}) {
    const std::string script = folder.file(name, 0755);
    CHECK(parse({script}, variables).program == Words{python, "-u", script});
  }
  const std::string app = folder.path + "/app";
  std::filesystem::create_directories(app);
  CHECK(check_contains(refusal({app}, variables).text, "app is a folder"));
  folder.file("app/__main__.py");
  const LaunchOptions options = parse({app, "a"}, variables);
  CHECK(options.program == Words{python, "-u", app, "a"});
  CHECK(parse({app + "/"}, {{"PATH", folder.path}, {"PYTHON_EXEC", "python-mine"}}).program ==
        Words{python, "-u", app + "/"});
  CHECK(check_contains(refusal({"--no-python", app}, variables).text, "app is a folder"));
}

TEST_CASE("Python is PYTHON_EXEC, the virtual environment's, python3 or python", "[options]") {
  const Folder folder;
  const std::string script = folder.file("x.py");
  std::filesystem::create_directories(folder.path + "/venv/bin");
  std::filesystem::create_directories(folder.path + "/bin");
  const std::string venv = folder.file("venv/bin/python", 0755);
  const std::string plain = folder.file("bin/python", 0755);
  const std::string path = folder.path + "/bin";
  CHECK(parse({script}, {{"PATH", path}}).program[0] == plain);
  const std::string three = folder.file("bin/python3", 0755);
  CHECK(parse({script}, {{"PATH", path}}).program[0] == three);
  CHECK(parse({script}, {{"PATH", path}, {"VIRTUAL_ENV", folder.path + "/venv"}}).program[0] ==
        venv);
  CHECK(parse({script},
              {{"PATH", path}, {"VIRTUAL_ENV", folder.path + "/venv"}, {"PYTHON_EXEC", "python"}})
            .program[0] == plain);
  CHECK(check_contains(refusal({script}, {{"PATH", "/none"}}).text, "no Python found"));
  CHECK(parse_options({script}, lookup_in(Variables{{"PYTHON_EXEC", "sh"}}), "/opt/bin/ddprun",
                      "ddprun")
            .program[0] == "/bin/sh");
  CHECK(check_contains(refusal({script}, {{"PYTHON_EXEC", "/no/py"}}).text, "PYTHON_EXEC=/no/py"));
}

TEST_CASE("a launcher that lies in an environment runs Python scripts by that one's", "[options]") {
  const Folder folder;
  const std::string script = folder.file("x.py");
  std::filesystem::create_directories(folder.path + "/env/bin");
  const std::string own = folder.file("env/bin/python", 0755);
  const auto python_with = [&](const Variables& variables) {
    return parse_options({script}, lookup_in(variables), folder.path + "/env/bin/ddprun", "ddprun")
        .program[0];
  };
  const Variables variables = {{"PATH", folder.path}, {"PYTHON_EXEC", ""}};
  folder.file("python3", 0755);
  CHECK(python_with(variables) == folder.path + "/python3");  // A folder like any other.
  SECTION("a virtual one") { folder.file("env/pyvenv.cfg"); }
  SECTION("one of conda") { std::filesystem::create_directories(folder.path + "/env/conda-meta"); }
  CHECK(python_with(variables) == own);
  CHECK(python_with({{"PATH", folder.path}, {"VIRTUAL_ENV", "/another"}}) == own);
  CHECK(python_with({{"PYTHON_EXEC", "sh"}}) == "/bin/sh");
  std::filesystem::remove(own);
  CHECK(python_with(variables) == folder.path + "/python3");
}

TEST_CASE("a script that names Python in its first line is run by that, unbuffered", "[options]") {
  const Folder folder;
  const std::string three = folder.file("python3", 0755), tool = folder.file("tool", 0755);
  const auto program_of = [&](const std::string& text) {
    std::ofstream(tool) << text;
    return parse({tool, "a"}, {{"PATH", folder.path}}).program;
  };
  CHECK(program_of("#!/usr/bin/env python3\nprint()\n") == Words{three, "-u", tool, "a"});
  CHECK(program_of("#! " + three + "\nprint()\n") == Words{three, "-u", tool, "a"});
  for (const char* other :
       {"#!/usr/bin/env sh\n", "#!/no/such/python3\n", "#!/usr/bin/env -S python3 -O\n", "#!\n", "",
        "#!/usr/bin/env no-such-python\n", "print()\n", "#!/bin/sh"}) {
    INFO(other);
    CHECK(program_of(other) == Words{tool, "a"});
  }
  program_of("#!/usr/bin/env python3\n");
  CHECK(parse({"--no-python", tool}, {{"PATH", folder.path}}).program == Words{tool});
}

TEST_CASE("what lies in the current folder does not stand in for a command", "[options]") {
  const Folder folder;
  folder.file("sh", 0755);
  folder.file("my_train", 0755);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path);
  const std::string command = parse({"sh"}).program[0];
  const std::string own = parse({"my_train"}).program[0];
  const std::string path = parse({"./sh"}).program[0];
  std::filesystem::create_directories("app");
  folder.file("app/__main__.py");
  const std::string refused = refusal({"app"}).text;
  std::filesystem::current_path(before);
  CHECK(check_contains(command, "bin/sh"));
  CHECK(own == "./my_train");
  CHECK(path == "./sh");
  CHECK(check_contains(refused, "app is a folder; ./app runs its __main__.py by Python"));
}

TEST_CASE("a program is found as a path, on PATH, then beside the launcher", "[options]") {
  const Folder folder;
  const std::string beside = folder.file("train", 0755);
  const std::string launcher = folder.path + "/ddprun";
  CHECK(parse({"train"}, {}, launcher).program[0] == beside);
  CHECK(parse({"sh"}, {{"PATH", "/bin"}}, launcher).program[0] == "/bin/sh");
  // Where there is none, execvp(3) looks there as well; an empty one is the current folder.
  CHECK(parse_options({"sh"}, lookup_in(Variables{}), launcher, "ddprun").program[0] == "/bin/sh");
  CHECK(check_contains(refusal({"sh"}, {{"PATH", ""}}).text, "sh was not found"));
  CHECK(check_contains(refusal({"no-such-program"}).text, "no-such-program was not found"));
  CHECK(check_contains(refusal({"statsu"}).text, "did you mean the command ddprun status?"));
  CHECK(refusal({"foo"}).text.find("did you mean") == std::string::npos);
  CHECK(check_contains(refusal({folder.path + "/trian"}).text, "did you mean " + beside + "?"));
  CHECK(check_contains(refusal({"trian"}, {}, launcher).text, "did you mean train?"));
  folder.file("resnet.py");
  CHECK(check_contains(refusal({folder.path + "/resent.py"}).text,
                       "did you mean " + folder.path + "/resnet.py?"));
  CHECK(refusal({folder.path + "/tr"}).text.find("did you mean") == std::string::npos);
  CHECK(check_contains(refusal({std::string(1 << 20, 'x')}).text, "was not found"));
  CHECK(check_contains(refusal({folder.file("data")}).text, "chmod +x"));
  CHECK(check_contains(refusal({folder.path}).text, "is a folder"));
  CHECK(check_contains(refusal({""}).text, "empty"));
  CHECK(check_contains(refusal({}).text, "no program is given"));
}

TEST_CASE("the local rank is put into the user's arguments", "[options]") {
  LaunchOptions result =
      parse({"/bin/true", "${local_rank}/$local_rank", "$$x", "$other", "${local_rankx}", "$"});
  CHECK(worker_argv(result, 12) ==
        Words{"/bin/true", "12/12", "$x", "$other", "${local_rankx}", "$"});
  result.local_rank_argument = true;
  CHECK(worker_argv(result, 3)[1] == "--local-rank=3");
  CHECK(worker_argv(options({"--pass-local-rank"}), 3) == Words{"/bin/true", "--local-rank=3"});
  CHECK(check_contains(error_of({"--pass-local-rank", "--use-env"}), "contradict"));
}

TEST_CASE("a worker with a virtual local rank sees one device", "[options]") {
  CHECK(visible_device(2, std::nullopt) == "2");
  CHECK(visible_device(1, "4,GPU-x,6") == "GPU-x");
  CHECK(visible_device(2, "4,5, 6 ") == "6");
  CHECK(visible_device(3, "4").empty());
  CHECK(check_contains(
      error_of({"--virtual-local-rank", "--nproc=3"}, {{"CUDA_VISIBLE_DEVICES", "0,1"}}),
      "CUDA_VISIBLE_DEVICES=\"0,1\" names 2"));
  CHECK(check_contains(error_of({"--virtual-local-rank", "--nproc=3"},
                                {{"CUDA_VISIBLE_DEVICES", "0,1,2"}, {"HIP_VISIBLE_DEVICES", "4"}}),
                       "HIP_VISIBLE_DEVICES=\"4\" names 1"));
  // Two workers may share a device.
  CHECK(options({"--virtual-local-rank", "--nproc=2"}, {{"CUDA_VISIBLE_DEVICES", "1,1"}})
            .virtual_local_rank);
}

TEST_CASE("the report's file is checked before anything starts", "[options]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "report.json";

  CHECK(options({}).report_file.empty());
  CHECK(options({"--report", path}).report_file == path);
  CHECK(options({}, {{"PET_REPORT", path}}).report_file == path);
  CHECK(check_contains(error_of({"--report", folder.path()}), "it is a folder"));
  CHECK(check_contains(error_of({"--report", folder / "none/report.json"}), "there is no folder"));
  // As in torchrun, where it is the start of nothing else.
  CHECK(options({"--re=3"}).redirects.of(0) == Std::All);
}

TEST_CASE("signals are either handled or passed on", "[options]") {
  CHECK(parse({"--forward-signals", "USR1,SIGUSR2", "sh"}).signals_to_forward ==
        std::vector<int>{SIGUSR1, SIGUSR2});
  CHECK(parse({"sh"}).signals_to_forward.empty());
  // Asked to pass it on, ddprun no longer stops for it ...
  const auto forwarded = parse({"--forward-signals=HUP", "sh"});
  CHECK(forwarded.signals_to_handle == std::vector<int>{SIGTERM, SIGINT, SIGQUIT});
  // ... unless it was asked to do both.
  CHECK_THROWS_AS(parse({"--forward-signals=HUP", "--signals-to-handle=HUP", "sh"}), UsageExit);
  CHECK_THROWS_AS(parse({"--forward-signals=KILL", "sh"}), UsageExit);
}

TEST_CASE("the restart policy's limits", "[options]") {
  const auto usual = parse({"sh"});
  CHECK(usual.restart_backoff == 500ms);
  CHECK(usual.max_same_failures == 5);
  CHECK_FALSE(usual.reset_restarts_after);
  const auto given = parse(
      {"--restart-backoff=0", "--max-same-failures", "0", "--reset-restarts-after=3600", "sh"});
  CHECK(given.restart_backoff == 0ms);
  CHECK(given.max_same_failures == 0);
  CHECK(given.reset_restarts_after == 1h);
  CHECK_THROWS_AS(parse({"--restart-backoff=-1", "sh"}), UsageExit);
  CHECK_THROWS_AS(parse({"--reset-restarts-after=0", "sh"}), UsageExit);
}

TEST_CASE("help is never an error", "[options]") {
  CHECK(refusal({"-h"}).status == 0);
  CHECK(refusal({"--help"}).status == 0);
  CHECK(refusal({"--version"}).status == 0);
  CHECK(check_contains(refusal({"--version"}).text, "ddprun "));
  CHECK(check_contains(refusal({"--version"}).text, " (commit "));
  CHECK(check_contains(refusal({"--version"}).text, " build, "));
  CHECK(refusal({"--nnodes=2", "--he"}).text == refusal({"--help"}).text);
}

TEST_CASE("whatever is typed is understood or refused", "[options]") {
  std::mt19937 random(20261121);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const Words pieces = {"-",     "--",   "=",      ":",      ",",
                        "0",     "1",    "-1",     "3",      "99999999999999999999",
                        "nan",   "[",    "]",      "[::1]:", "$",
                        "\x01",  "\xff", "",       " ",      "auto",
                        "gpu",   "c10d", "static", "x",      "/bin/true",
                        "0-3:1", "a=b",  "\n",     "'",      "-r",
                        "-t",    "-m",   "-hq"};
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    Words words;
    for (std::size_t count = below(6); count > 0; --count) {
      std::string word;
      const auto& table = option_table();
      if (below(2) == 0) {
        word = "--" + table[below(table.size())].name;
        word.resize(word.size() - below(3));
        if (below(2) == 0) word += "=";
      }
      for (std::size_t n = below(3); n > 0; --n) word += pieces[below(pieces.size())];
      words.push_back(word);
    }
    if (below(2) == 0) words.push_back("/bin/true");
    const Refusal result = refusal(words, {{"CUDA_VISIBLE_DEVICES", pieces[below(pieces.size())]}});
    accepted += result.status == -1;
    CHECK((result.status == -1 || result.status == 0 || result.status == 2));
  }
  CHECK(accepted > 100);
}

TEST_CASE("memory for restarts has a size", "[launcher][options][spares]") {
  const auto memory = [](const std::string& size) {
    return parse({"--restart-memory=" + size, "sh"}).restart_memory;
  };
  CHECK(memory("0") == 0);
  CHECK(memory("2M") == 2 << 20);
  CHECK_THROWS_AS(memory("100"), UsageExit);
  CHECK_THROWS_AS(memory("much"), UsageExit);
}

TEST_CASE("spares are for this node's workers, and for restarts", "[launcher][options][spares]") {
  const auto options = [](std::vector<std::string> words) {
    words.push_back("sh");
    return parse(words);
  };
  CHECK(options({"--nproc-per-node=2", "--max-restarts=1"}).spares == 0);
  CHECK(options({"--nproc-per-node=2", "--max-restarts=1", "--spares=2"}).spares == 2);
  CHECK_THROWS_AS(options({"--nproc-per-node=2", "--max-restarts=1", "--spares=3"}), UsageExit);
  CHECK_THROWS_AS(options({"--spares=-1"}), UsageExit);
  CHECK(options({}).spare_timeout == 10min);
  CHECK(options({"--spare-timeout=2.5"}).spare_timeout == 2500ms);
  CHECK_FALSE(options({"--spare-timeout=0"}).spare_timeout);
  CHECK_THROWS_AS(options({"--spare-timeout=-1"}), UsageExit);

  const auto useless = options({"--spares=1"});
  CHECK(useless.spares == 0);
  REQUIRE(useless.notes.size() == 1);
  CHECK(useless.notes[0].find("--max-restarts") != std::string::npos);
  // Attempts of an elastic job also end when a node comes or goes.
  CHECK(
      options({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:1", "--spares=1"})
          .spares == 1);
}

TEST_CASE("a dash, which would make a file of that name, is a wrong option",
          "[launcher][options]") {
  for (const char* option : {"--event-log", "--metrics-file", "--report"}) {
    CHECK(check_contains(
        error_of({option, "-"}),
        "\"-\" is none: /dev/stdout is standard output, and ./- a file of that name"));
    check_contains(error_of({option, "-"}), std::string(option) + "=-: ");
  }
  CHECK(options({"--event-log", "./-"}).event_log == "./-");
}

TEST_CASE("a file to write has a name of its own, in a folder that is there",
          "[launcher][options]") {
  const ddprun::testing::TemporaryFolder folder;
  CHECK(options({"--event-log", "a b\xc3\xa9"}).event_log == "a b\xc3\xa9");
  for (const char* bad : {"", "a\nb", "a\x1f", "a\x7f"}) {
    CHECK(check_contains(error_of({"--event-log", bad}), "expected the name of a file"));
  }
  std::ofstream(folder / "file") << "";
  for (const std::string& place : {folder / "file", folder / "none"}) {
    CHECK(check_contains(error_of({"--event-log", place + "/log"}),
                         "but there is no folder " + place));
  }
}

TEST_CASE("a place where nothing can be written is a wrong option", "[launcher][options]") {
  const ddprun::testing::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "closed");
  std::filesystem::permissions(folder / "closed", std::filesystem::perms::none);
  ::chmod(folder.path().c_str(), 0755);  // But for what is in it.
  const std::string closed = folder / "closed";
  std::string in_closed, in_deeper, program, device;
  {
    const ddprun::testing::AsNobody nobody;
    in_closed = error_of({"--event-log", closed + "/events"});
    in_deeper = error_of({"--metrics-file", closed + "/deeper/metrics"});
    device = options({"--event-log", "/dev/null"}).event_log;
    program = refusal({closed + "/program"}).text;
  }
  std::filesystem::permissions(folder / "closed", std::filesystem::perms::owner_all);
  CHECK(check_contains(in_closed, closed + ": Permission denied"));
  CHECK(check_contains(in_deeper, closed + "/deeper: Permission denied"));
  CHECK(device == "/dev/null");
  CHECK(check_contains(
      program, "the program " + closed + "/program cannot be looked at: Permission denied"));
}
