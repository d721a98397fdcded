// How long an all-reduce takes, per buffer size: forks the ranks itself, or measures inside a job
// that a launcher started (RANK and WORLD_SIZE set). Prints a table and one JSON line.
//
//   allreduce --world 2 --bytes 44700000,1000000 [--tcp [--encrypt]] [--copy] [--pin]
//   [--repetitions 50]
//
// benchmarks/allreduce_gloo.py is the same measurement of PyTorch's Gloo: every repetition starts
// behind a barrier, and its time is that of the slowest rank.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/testing/mapped_exchange.h"
#include "worker/cpu/cpu_communicator.h"
#include "worker/cpu/reduce.h"

using namespace ddprun::worker;

namespace {

struct Options {
  int world = 2;
  std::vector<std::size_t> bytes{44'700'000, 25'000'000, 1'000'000, 65'536, 1'024};
  int repetitions = 50;
  bool tcp = false;
  bool encrypt = false;
  bool copy = false;
  bool pin = false;
};

// Seconds of each repetition, of the slowest rank; equal on all ranks.
std::vector<double> measure(Communicator& comm, float* data, std::size_t count, int repetitions) {
  std::vector<double> seconds;
  for (int i = -3; i < repetitions; ++i) {  // Three to warm up.
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    comm.all_reduce(data, count, DataType::Float32, ReduceOp::Average);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (i >= 0) seconds.push_back(time.count());
  }
  comm.all_reduce(seconds.data(), seconds.size(), DataType::Float64, ReduceOp::Max);
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

nlohmann::json run(Communicator& comm, const Options& options) {
  nlohmann::json results = nlohmann::json::array();
  for (const std::size_t bytes : options.bytes) {
    const std::size_t count = bytes / sizeof(float);
    std::vector<float> own(options.copy ? count : 0);
    const auto memory = comm.allocate(options.copy ? 64 : bytes);
    float* data = options.copy ? own.data() : static_cast<float*>(memory.get());
    std::fill_n(data, count, 1.0f);
    const auto seconds = measure(comm, data, count, options.repetitions);
    const double median = seconds[seconds.size() / 2];
    results.push_back({{"bytes", bytes},
                       {"median_s", median},
                       {"min_s", seconds.front()},
                       {"max_s", seconds.back()},
                       {"repetitions", options.repetitions},
                       {"bytes_per_s", static_cast<double>(bytes) / median}});
  }
  return {{"benchmark", "allreduce"},
          {"system", "ddprun"},
          {"world", comm.world_size()},
          {"wiring", comm.description()},
          {"results", results}};
}

void print(const nlohmann::json& report) {
  std::cout << report["system"].get<std::string>() << ", " << report["wiring"].get<std::string>()
            << "\n      bytes   median us      min us      max us      GB/s\n";
  for (const auto& row : report["results"]) {
    std::printf("%11zu %11.1f %11.1f %11.1f %9.2f\n", row["bytes"].get<std::size_t>(),
                row["median_s"].get<double>() * 1e6, row["min_s"].get<double>() * 1e6,
                row["max_s"].get<double>() * 1e6, row["bytes_per_s"].get<double>() / 1e9);
  }
  std::fflush(stdout);
  std::cout << report.dump() << std::endl;
}

int run_rank(Communicator& comm, const Options& options) {
  const auto report = run(comm, options);
  if (comm.rank() == 0) print(report);
  return 0;
}

void pin_to_core(int rank) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<unsigned>(rank) % static_cast<unsigned>(::sysconf(_SC_NPROCESSORS_ONLN)),
          &cores);
  ::sched_setaffinity(0, sizeof(cores), &cores);
}

int run_forked(const Options& options, const CpuCommunicatorOptions& communicator_options) {
  const auto board = MappedExchange::create(options.world);
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.world; ++rank) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    if (options.pin) pin_to_core(rank);
    int code = 1;
    try {
      MappedExchange exchange(board, rank);
      const auto comm =
          connect_cpu_communicator(rank, options.world, 0, exchange, communicator_options);
      code = run_rank(*comm, options);
    } catch (const std::exception& error) {
      std::cerr << "allreduce: rank " << rank << ": " << error.what() << std::endl;
    }
    ::_exit(code);
  }
  int failures = 0;
  for (const pid_t child : children) {
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0) ++failures;
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Times all-reduce over the CPU communicator."};
  app.add_option("--world", options.world, "Ranks to fork when no launcher started this")
      ->check(CLI::Range(1, tree_ranks_max));
  app.add_option("--bytes", options.bytes, "Buffer sizes, separated by commas")->delimiter(',');
  app.add_option("--repetitions", options.repetitions)->check(CLI::Range(1, 1'000'000));
  app.add_flag("--tcp", options.tcp, "TCP also within this host");
  app.add_flag("--encrypt", options.encrypt,
               "What forked ranks send each other over TCP is sealed");
  app.add_flag("--copy", options.copy, "Ordinary memory instead of allocate()'s");
  app.add_flag("--pin", options.pin, "Each forked rank on a core of its own");
  CLI11_PARSE(app, argc, argv);
  CpuCommunicatorOptions communicator_options;
  communicator_options.common.shared_memory = !options.tcp;
  if (options.encrypt) {
    communicator_options.encrypt = true;  // Any key: the ranks are ours.
    communicator_options.key = std::make_shared<ddprun::rendezvous::WorkerKey>(
        ddprun::rendezvous::SecretBytes(ddprun::rendezvous::record_key_bytes));
  }
  try {
    const WorkerEnv env = read_worker_env();
    if (!env.launched) return run_forked(options, communicator_options);
    const auto comm = make_cpu_communicator(env, communicator_options.common);
    return run_rank(*comm, options);
  } catch (const std::exception& error) {
    std::cerr << "allreduce: " << error.what() << std::endl;
    return 1;
  }
}
