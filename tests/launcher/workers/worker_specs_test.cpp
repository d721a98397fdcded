// What workers are started with: environment, arguments, output.
#include "launcher/workers/worker_specs.h"

#include <csignal>
#include <map>
#include <utility>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using ddprun::rendezvous::RoundStart;

namespace {

struct Case {
  Case() {
    options.nproc_per_node = 2;
    options.program = {"train"};
    options.program_name = "train";
    options.run_id = "job";
    options.role = "default";
    options.signals_to_handle = {SIGTERM, SIGINT};
    round = {.attempt = 1,
             .term = 2,
             .max_restarts = 3,
             .group_rank = 1,
             .group_world_size = 2,
             .rank_base = 4,
             .world_size = 6,
             .role_rank_base = 4,
             .role_world_size = 6,
             .master_addr = "10.0.0.1",
             .master_port = 29'500};
  }
  WorkerSpecInputs inputs() const {
    return {.options = options,
            .round = round,
            .launched_at_s = 7,
            .host_name = "gpu7",
            .attempt_dir = attempt_dir,
            .environment =
                [this](const std::string& name) {
                  const auto found = environment.find(name);
                  return found == environment.end() ? std::nullopt
                                                    : std::optional<std::string>(found->second);
                },
            .console_columns = terminal ? 100 : 0,
            .cpus = [this] { return cpus; },
            .places = places,
            .ras_address = ras_address,
            .may_park = may_park,
            .peer_word_limit = peer_word_limit,
            .filled = filled,
            .worker_store = worker_store};
  }
  std::vector<WorkerSpec> specs() const { return make_worker_specs(inputs()); }
  std::vector<std::string> notes() const { return placement_notes(inputs()); }
  std::map<std::string, std::string> variables(std::size_t worker) const {
    const auto all = specs().at(worker).variables;
    return {all.begin(), all.end()};
  }

  LaunchOptions options;
  RoundStart round;
  std::string attempt_dir = "/logs/attempt_1";
  std::map<std::string, std::string> environment;
  bool terminal = false;
  std::string ras_address;
  bool may_park = false;
  std::chrono::milliseconds peer_word_limit{0};
  std::vector<int> filled;
  int cpus = 8;
  std::vector<WorkerCpus> places;
  std::optional<WorkerStore> worker_store;
};

}  // namespace

TEST_CASE("a worker gets torchrun's whole environment", "[launcher][worker_specs]") {
  const auto variables = Case().variables(1);

  const std::map<std::string, std::string> expected{
      {"LOCAL_RANK", "1"},
      {"RANK", "5"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"WORLD_SIZE", "6"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", "5"},
      {"ROLE_WORLD_SIZE", "6"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_RESTART_COUNT", "1"},
      {"DDPRUN_TERM", "2"},
      {"DDPRUN_LAUNCHED_AT", "7"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_RUN_ID", "job"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_ERROR_FILE", "/logs/attempt_1/1/error.json"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "1"},
      {"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"},
  };
  CHECK(variables == expected);
}

TEST_CASE("OMP_NUM_THREADS is 1 only for several workers that did not inherit it",
          "[launcher][worker_specs]") {
  Case c;
  c.environment.emplace("OMP_NUM_THREADS", "4");
  CHECK(c.variables(0).count("OMP_NUM_THREADS") == 0);
  c.environment.clear();
  c.options.nproc_per_node = 1;
  CHECK(c.variables(0).count("OMP_NUM_THREADS") == 0);
  c.options.nproc_per_node = 2;
  c.options.omp_threads = std::string("auto");
  c.places = {{.cores = 4}, {.cores = 3}};
  CHECK(c.variables(0)["OMP_NUM_THREADS"] == "4");
  CHECK(c.variables(1)["OMP_NUM_THREADS"] == "3");
  c.options.omp_threads = std::string("3");
  CHECK(c.variables(0)["OMP_NUM_THREADS"] == "3");
}

TEST_CASE("workers ask for huge pages unless the launcher's environment says otherwise",
          "[launcher][worker_specs]") {
  Case c;
  CHECK(c.variables(0)["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1");
  for (const std::string theirs : {"", "glibc.malloc.check=1"}) {
    c.environment["GLIBC_TUNABLES"] = theirs;
    CHECK(c.variables(0).count("GLIBC_TUNABLES") == 0);
  }
}

TEST_CASE("workers get the CPUs of their places", "[launcher][worker_specs]") {
  Case c;
  CHECK(c.specs()[1].cpus.empty());
  c.places = {{.cpus = {0, 1}}, {.cpus = {4, 5}}};
  CHECK(c.specs()[1].cpus == std::vector<int>{4, 5});
}

TEST_CASE("16.3: where some places have no worker, local ranks count those that have",
          "[launcher][worker_specs]") {
  Case c;
  c.options.nproc_per_node = 3;
  c.options.omp_threads = std::string("auto");
  c.places = {{.cpus = {0}, .cores = 1}, {.cpus = {1, 2}, .cores = 2}, {.cpus = {3}, .cores = 3}};
  c.filled = {0, 2};
  const auto specs = c.specs();
  REQUIRE(specs.size() == 2);
  CHECK(specs[1].local_rank == 1);
  CHECK(specs[1].place == 2);
  CHECK(specs[1].cpus == std::vector<int>{3});
  CHECK(specs[1].rank == specs[0].rank + 1);
  auto variables = c.variables(1);
  CHECK(variables["LOCAL_RANK"] == "1");
  CHECK(variables["LOCAL_WORLD_SIZE"] == "2");
  CHECK(variables["OMP_NUM_THREADS"] == "3");
  CHECK(variables["TORCHELASTIC_ERROR_FILE"] == "/logs/attempt_1/1/error.json");
  // The device stays that of the place.
  c.options.virtual_local_rank = true;
  CHECK(c.variables(1)["CUDA_VISIBLE_DEVICES"] == "2");
  c.filled.clear();
  CHECK(c.specs().size() == 3);
  CHECK(c.specs()[2].place == 2);
}

TEST_CASE("what was chosen for CPUs and threads is told in few lines", "[launcher][worker_specs]") {
  using Lines = std::vector<std::string>;
  Case c;
  c.options.nproc_per_node = 3;
  c.round.group_rank = 0;
  c.cpus = 6;
  CHECK(c.notes() == Lines{"OMP_NUM_THREADS is 1, as with torchrun, though there are 6 CPUs for 3 "
                           "workers; --omp-threads auto shares them out"});
  c.round.group_rank = 1;
  CHECK(c.notes().empty());  // Node 0 has said it.
  c.round.group_rank = 0;
  c.cpus = 5;
  CHECK(c.notes().empty());  // Nobody would get more.
  c.cpus = 6;
  c.environment.emplace("OMP_NUM_THREADS", "2");
  CHECK(c.notes().empty());

  c.options.omp_threads = std::string("auto");
  c.places = std::vector<WorkerCpus>(3, {.cores = 1, .of_quota = true});
  CHECK(c.notes() ==
        Lines{"OMP_NUM_THREADS is 1: each worker's share of the control group's quota of CPUs"});
  c.places = {{.cpus = {0, 1}, .reason = "node 0", .cores = 2},
              {.cpus = {0, 1}, .reason = "node 0", .cores = 2},
              {.reason = "no CPU", .cores = 1}};
  CHECK(c.notes() ==
        Lines{"OMP_NUM_THREADS is 2, 2, 1: each worker's share of the physical cores"});
  c.options.omp_threads.reset();
  c.options.numa_binding = NumaBinding::Node;
  CHECK(c.notes() ==
        Lines{"workers 0-1 on CPUs 0-1: node 0", "worker 2 not bound to CPUs: no CPU"});
}

TEST_CASE("a store of rank 0's own has its own address, and workers know",
          "[launcher][worker_specs]") {
  Case c;
  c.worker_store = WorkerStore{.host = "10.0.0.9", .port = 4'321};
  const auto variables = c.variables(1);
  CHECK(variables.at("TORCHELASTIC_USE_AGENT_STORE") == "False");
  CHECK(variables.at("MASTER_ADDR") == "10.0.0.9");
  CHECK(variables.at("MASTER_PORT") == "4321");
}

TEST_CASE("workers that are to outlive the session are told of as such",
          "[launcher][worker_specs]") {
  Case job;
  CHECK_FALSE(job.specs().at(0).outlives_session);
  job.options.stay = true;
  CHECK(job.specs().at(0).outlives_session);
}

TEST_CASE("an inherited NCCL setting is kept", "[launcher][worker_specs]") {
  Case c;
  c.environment.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0");

  CHECK(c.variables(0)["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0");
}

TEST_CASE("with virtual local ranks everybody is local rank 0 of one device",
          "[launcher][worker_specs]") {
  Case c;
  c.options.virtual_local_rank = true;
  c.environment.emplace("CUDA_VISIBLE_DEVICES", "2,5");

  CHECK(c.variables(1)["LOCAL_RANK"] == "0");
  CHECK(c.variables(1)["CUDA_VISIBLE_DEVICES"] == "5");
  CHECK(c.variables(1)["RANK"] == "5");
  CHECK(c.variables(1).count("HIP_VISIBLE_DEVICES") == 0);

  c.environment["HIP_VISIBLE_DEVICES"] = "";
  CHECK(c.variables(1)["CUDA_VISIBLE_DEVICES"] == "5");
  CHECK(c.variables(1).count("HIP_VISIBLE_DEVICES") == 0);
  c.environment["HIP_VISIBLE_DEVICES"] = "6,7";  // ROCm heeds it first.
  CHECK(c.variables(1)["HIP_VISIBLE_DEVICES"] == "7");
  CHECK(c.variables(1)["CUDA_VISIBLE_DEVICES"] == "7");
}

TEST_CASE("redirects go to files, tees to both, under torchrun's names",
          "[launcher][worker_specs]") {
  Case c;
  c.options.redirects = {.everywhere = Std::Err};
  c.options.tee = {.by_local_rank = {{1, Std::Out}}, .is_map = true};

  const auto specs = c.specs();

  CHECK(specs[0].output.out.console);
  CHECK(specs[0].output.out.file.empty());
  CHECK_FALSE(specs[0].output.err.console);
  CHECK(specs[0].output.err.file == "/logs/attempt_1/0/stderr.log");
  CHECK(specs[1].output.out.console);
  CHECK(specs[1].output.out.file == "/logs/attempt_1/1/stdout.log");
}

TEST_CASE("filters are for tee'd streams that are shown, rotation for every file",
          "[launcher][worker_specs]") {
  Case c;
  c.options.stdout_filters = {"apple"};
  c.options.log_rotation = {4096, 2};
  c.options.redirects = {.everywhere = Std::Out};
  CHECK(c.specs()[0].output.out.filtered_file.empty());
  CHECK(c.specs()[0].output.out.rotation.bytes_max == 4096);
  CHECK(c.specs()[0].output.err.rotation.bytes_max == 0);  // No file.

  c.options.tee = {.everywhere = Std::All};
  c.options.local_ranks_filter = {1};
  const auto specs = c.specs();
  CHECK(specs[0].output.out.filtered_file.empty());
  CHECK(specs[1].output.out.filtered_file == "/logs/attempt_1/filtered_stdout.log");
  CHECK(specs[1].output.out.filters == std::vector<std::string>{"apple"});
  CHECK(specs[1].output.err.filtered_file.empty());
}

TEST_CASE("collapsed lines have a prefix also where others have none", "[launcher][worker_specs]") {
  Case c;
  CHECK_FALSE(c.specs()[0].output.collapse);
  c.options.collapse_output = true;
  const WorkerOutput output = c.specs()[1].output;
  CHECK(output.collapse);
  CHECK(output.prefix == "[default1]:");
  CHECK(output.collapsed_prefix.of({0, 1}) == "[default0-1]:");
  c.options.log_line_prefix_template = "r${rank} ";
  CHECK(c.specs()[1].output.collapsed_prefix.of({0, 1}) == "r4-5 ");
  c.options.nproc_per_node = 1;
  CHECK_FALSE(c.specs()[0].output.collapse);
}

TEST_CASE("the null device as log directory disables files", "[launcher][worker_specs]") {
  Case c;
  c.attempt_dir.clear();
  c.options.tee = {.everywhere = Std::All};

  CHECK(c.specs()[0].output.out.file.empty());
  CHECK(c.variables(0)["TORCHELASTIC_ERROR_FILE"].empty());
}

TEST_CASE("the filter leaves only the ranks listed on the console", "[launcher][worker_specs]") {
  Case c;
  c.options.local_ranks_filter = {1};

  CHECK_FALSE(c.specs()[0].output.out.console);
  CHECK(c.specs()[1].output.err.console);
}

TEST_CASE("a worker shown on a terminal learns how wide it is", "[launcher][worker_specs]") {
  Case c;
  CHECK(c.variables(1).count("DDPRUN_TERMINAL_COLUMNS") == 0);

  c.terminal = true;
  CHECK(c.variables(1).at("DDPRUN_TERMINAL_COLUMNS") == "89");  // 100 less "[default1]:".
  c.options.local_ranks_filter = {0};
  CHECK(c.variables(1).count("DDPRUN_TERMINAL_COLUMNS") == 0);

  c.environment["DDPRUN_TERMINAL_COLUMNS"] = "100";  // Of a launcher around this one.
  CHECK(c.variables(1).at("DDPRUN_TERMINAL_COLUMNS") == "0");
}

TEST_CASE("lines get a prefix where it helps and nowhere else", "[launcher][worker_specs]") {
  Case c;
  CHECK(c.specs()[1].output.prefix.empty());

  c.terminal = true;
  CHECK(c.specs()[1].output.prefix == "[default1]:");
  c.options.local_ranks_filter = {1};
  CHECK(c.specs()[1].output.prefix.empty());

  c.terminal = false;
  c.options.tee = {.everywhere = Std::Out};
  CHECK(c.specs()[1].output.prefix == "[default1]:");
  c.options.log_line_prefix_template = "${hostname} ${role_name}-${rank}/${local_rank} ";
  CHECK(c.specs()[1].output.prefix == "gpu7 default-5/1 ");
}

TEST_CASE("of two streams only the one that is tee'd has a prefix", "[launcher][worker_specs]") {
  Case c;
  const auto prefixed = [&] {
    const WorkerOutput output = c.specs()[1].output;
    return std::pair{output.out.prefixed, output.err.prefixed};
  };
  c.options.tee = {.everywhere = Std::Err};
  CHECK(prefixed() == std::pair{false, true});
  c.options.log_line_prefix_template = "r$rank ";
  CHECK(prefixed() == std::pair{false, true});
  CHECK(c.specs()[1].output.prefix == "r5 ");

  c.terminal = true;  // Several on a terminal: people see who wrote what.
  CHECK(prefixed() == std::pair{true, true});
  c.terminal = false;
  c.options.tee = {};
  CHECK(prefixed() == std::pair{false, false});  // As torchrun, of its variable alone.
  c.options.prefix_always = true;
  CHECK(prefixed() == std::pair{true, true});
}

TEST_CASE("what an outer launcher gave to us is not for our workers", "[launcher][worker_specs]") {
  Case c;
  const std::vector<std::string> names = {"DDPRUN_SECRET_FD",        "DDPRUN_RESTART_MEMORY_FD",
                                          "DDPRUN_PROGRESS_PAGE",    "DDPRUN_RANK_FD",
                                          "DDPRUN_WORD_LIMIT_MS",    "DDPRUN_SPARE_FD",
                                          "DDPRUN_ENCRYPT_GRADIENTS"};
  for (const std::string& name : names) {
    INFO(name);
    CHECK_FALSE(c.variables(0).contains(name));
    c.environment[name] = "9";
    REQUIRE(c.variables(0).contains(name));
    CHECK(c.variables(0).at(name).empty());
  }
  c.environment["DDPRUN_TERMINAL_COLUMNS"] = "90";
  CHECK(c.variables(0)["DDPRUN_TERMINAL_COLUMNS"] == "0");
}

TEST_CASE("a spare is started like its worker, less what only a round decides",
          "[launcher][worker_specs][spares]") {
  Case c;
  c.options.tee.everywhere = Std::Out;
  c.options.stdout_filters = {"apple"};
  c.environment["DDPRUN_SPARE_FD"] = "9";  // Of an outer launcher.
  const WorkerSpec worker = c.specs().at(1);
  CHECK(c.variables(1)["DDPRUN_SPARE_FD"].empty());

  const WorkerSpec spare = spare_of(worker, "/logs/spare_1");

  std::map<std::string, std::string> variables;
  for (const auto& [name, value] : spare.variables) variables[name] = value;
  for (const char* name :
       {"RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "DDPRUN_TERM"}) {
    INFO(name);
    CHECK(variables[name] == "spare");
  }
  CHECK(variables["TORCHELASTIC_ERROR_FILE"].empty());
  CHECK(variables["DDPRUN_SPARE_FD"] == "4");
  CHECK(variables["LOCAL_RANK"] == "1");
  CHECK(variables["LOCAL_WORLD_SIZE"] == "2");
  CHECK(variables["TORCHELASTIC_MAX_RESTARTS"] == "3");
  CHECK(spare.argv == worker.argv);
  CHECK(spare.cpus == worker.cpus);
  CHECK(spare.output.prefix == "[spare1]:");
  CHECK(spare.output.out.file == "/logs/spare_1/stdout.log");
  CHECK(spare.output.out.filtered_file.empty());
  CHECK(spare.output.err.file.empty());  // Nor has the worker one.
}

TEST_CASE(
    "16.3: a worker is told of its channel where another attempt may follow, and a spare with "
    "its rank",
    "[launcher][worker_specs][spares]") {
  Case c;
  c.environment["DDPRUN_RANK_FD"] = "9";  // Of an outer launcher.
  CHECK(c.variables(0)["DDPRUN_RANK_FD"].empty());
  CHECK_FALSE(c.specs().at(0).keeps_channel);
  c.may_park = true;
  CHECK(c.variables(0)["DDPRUN_RANK_FD"] == "4");
  c.peer_word_limit = std::chrono::seconds(15);
  CHECK(c.variables(0)["DDPRUN_WORD_LIMIT_MS"] == "15000");

  const WorkerSpec spare = spare_of(c.specs().at(0), "");

  CHECK(spare.is_spare);
  for (const auto& [name, value] : spare.variables) {
    if (name == "DDPRUN_RANK_FD") CHECK(value.empty());
  }
}

TEST_CASE(
    "17.2: workers are told where NCCL's RAS service is to listen, if it is for ddprun to say",
    "[launcher]") {
  Case with;
  CHECK_FALSE(with.variables(0).contains("NCCL_RAS_ADDR"));
  with.ras_address = "127.0.0.1:28111";
  for (const std::size_t worker : {0U, 1U}) {
    CHECK(with.variables(worker).at("NCCL_RAS_ADDR") == "127.0.0.1:28111");
  }
}
