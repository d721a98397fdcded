// Workers started one by one, without a launcher: they meet by address, by file or by variables, in
// any order, and train to the weights of a launched job.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/small_training.h"
#include "tests/testing/catch.h"
#include "tests/testing/network_hosts.h"
#include "tests/testing/patience.h"

using namespace ddprun::testing;

namespace {

constexpr auto limit = 120s;

using Results = std::vector<ProcessResult>;

// Starts the given ranks of a world one after the other, and waits for all of them.
Results start(const std::vector<int>& ranks, int world_size, const std::string& url,
              const std::vector<std::string>& program,
              const std::map<std::string, std::string>& variables = {}) {
  std::vector<std::unique_ptr<Process>> processes;
  for (const int rank : ranks) {
    processes.push_back(std::make_unique<Process>(
        program + std::vector<std::string>{"--init-method", url, "--rank", std::to_string(rank),
                                           "--world-size", std::to_string(world_size)},
        variables));
  }
  Results results;
  for (auto& process : processes) results.push_back(process->wait(limit));
  return results;
}

void require_success(const Results& results) {
  for (const ProcessResult& result : results) {
    INFO(result.output);
    REQUIRE(result.status == 0);
  }
}

std::string text_of(const Results& results) {
  std::string text;
  for (const ProcessResult& result : results) text += result.output;
  return text;
}

// The tensors of a job of so many workers under ddprun: what those by hand must come to.
std::string launched_weights(const std::string& folder, int workers) {
  const auto result = run(launch({"--standalone", "--nproc-per-node", std::to_string(workers)}) +
                              small_training({"--steps", "4", "--checkpoint-dir", folder}),
                          limit, one_thread);
  INFO(result.output);
  REQUIRE(result.status == 0);
  return newest_tensors(folder);
}

std::string tcp_url() { return "tcp://127.0.0.1:" + std::to_string(free_port()); }

}  // namespace

TEST_CASE("two and four workers meet by address, by file and by variables, in any order") {
  TemporaryFolder folder;
  const std::string file = "file://" + (folder / "meet");
  for (const auto& order : {std::vector<int>{1, 0}, std::vector<int>{2, 0, 3, 1}}) {
    const int world = static_cast<int>(order.size());
    const std::string name = std::to_string(world);
    const std::string expected = launched_weights(folder / ("launched" + name), world);
    int number = 0;
    // The same file twice in a row.
    for (const std::string& url : {tcp_url(), file, file, std::string("env://")}) {
      const std::string own = folder / (name + "-" + std::to_string(number++));
      const auto results =
          start(order, world, url, small_training({"--steps", "4", "--checkpoint-dir", own}),
                {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(free_port())}});
      require_success(results);
      const bool same_weights = newest_tensors(own) == expected;
      INFO(url << ", " << world << " workers");
      CHECK(same_weights);
      CHECK_FALSE(std::filesystem::exists(folder / "meet"));
    }
  }
}

// In namespaces of mounts and the network: no file of this machine changes, and the port is free.
TEST_CASE("workers meet at the loopback address that localhost has, and at that alone") {
  const TemporaryFolder folder;
  const std::string script =
      "ip link set lo up; echo '::1 localhost' >\"$1/hosts\"\n"
      "mount --bind \"$1/hosts\" /etc/hosts; shift\n"
      "for host in localhost '[::1]'; do\n"
      "  worker() { \"$@\" --init-method tcp://$host:29511 --world-size 2 --connect-timeout 30; }\n"
      "  worker \"$@\" --rank 0 & zero=$!\n"
      "  until listening=$(ss -Hltn 'sport = :29511' | grep .); do kill -0 $zero; sleep 0.05; "
      "done\n"
      "  echo $host: $listening\n"
      "  worker \"$@\" --rank 1\n"
      "  wait $zero\n"
      "done\n";
  if (run({"unshare", "--mount", "--net", "ss", "-Hltn"}, 20s).status != 0) {
    DDPRUN_SKIP("this user may not make namespaces of mounts and the network, or there is no ss");
  }
  const auto result = run(std::vector<std::string>{"unshare", "--mount", "--net", "/bin/bash",
                                                   "-ec", script, "by-hand", folder.path()} +
                              small_training({"--steps", "1"}),
                          limit, one_thread);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "localhost: LISTEN"));
  CHECK(contains(result.output, "[::1]: LISTEN"));
  CHECK(count_of(result.output, " [::1]:29511 ") == 2);
}

TEST_CASE("workers on one host find their local ranks, and share its threads") {
  const auto results =
      start({1, 0}, 2, tcp_url(), small_training({"--steps", "1", "--device", "auto"}));
  require_success(results);
  CHECK(contains(results[1].output, "2 ranks on 1 host"));
}

TEST_CASE("a worker that never comes is named, with the limit and its option") {
  TemporaryFolder folder;
  const std::string limit = patience_seconds(3);  // Enough for both that come to start.
  for (const std::string& url : {tcp_url(), "file://" + (folder / "meet")}) {
    const auto results =
        start({0, 2}, 4, url, small_training({"--steps", "1", "--connect-timeout", limit}));
    for (const ProcessResult& result : results) {
      INFO(result.output);
      CHECK(result.status == 1);
      CHECK(contains(result.output, "rank 1, rank 3 of 4 did not come within " + limit + " s"));
      CHECK(contains(result.output, "--connect-timeout"));
    }
  }
}

TEST_CASE(
    "14.17: a worker that waits for the others says so after 10 s, and trains when they come") {
  const TemporaryFolder folder;
  const std::string file = "file://" + (folder / "meet"), tcp = tcp_url(), other_tcp = tcp_url();
  const auto worker = [](int rank, const std::string& url) {
    return small_training({"--steps", "2", "--init-method", url, "--rank", std::to_string(rank),
                           "--world-size", "2"});
  };
  Process without_file(worker(1, file), one_thread), without_store(worker(1, tcp), one_thread),
      without_peer(worker(0, other_tcp), one_thread);

  CHECK(
      without_file.wait_for_output("rank 1 of 2 has waited for 10 s to meet the others: the "
                                   "rendezvous file " +
                                       (folder / "meet") + ": it is not there yet",
                                   limit));
  CHECK(without_store.wait_for_output("to meet the others: store 127.0.0.1:", limit));
  CHECK(without_peer.wait_for_output("to meet the others: rank 1 of 2 did not come yet", limit));
  CHECK(contains(without_peer.output(), "(--connect-timeout sets the limit)"));

  Process file_host(worker(0, file), one_thread), store_host(worker(0, tcp), one_thread),
      peer(worker(1, other_tcp), one_thread);
  for (Process* process :
       {&without_file, &without_store, &without_peer, &file_host, &store_host, &peer}) {
    const auto result = process->wait(limit);
    INFO(result.output);
    CHECK(result.status == 0);
  }
}

TEST_CASE("without rank 0 the others say where they looked") {
  TemporaryFolder folder;
  const auto options = small_training({"--steps", "1", "--connect-timeout", "1"});
  const std::string url = tcp_url();
  const std::string by_address = text_of(start({1}, 2, url, options));
  INFO(by_address);
  CHECK(contains(by_address, url.substr(6)));
  CHECK(contains(by_address, "within 1 s"));
  CHECK(contains(by_address, "is rank 0 running there"));
  CHECK(contains(by_address, "train: rank 1 of 2 could not meet"));  // The rank is said once.
  CHECK(contains(by_address, "--connect-timeout"));

  const std::string by_file = text_of(start({1}, 2, "file://" + (folder / "meet"), options));
  INFO(by_file);
  CHECK(contains(by_file, folder / "meet"));
  CHECK(contains(by_file, "is rank 0 running"));
  CHECK(contains(by_file, "--connect-timeout"));

  const std::string nowhere =
      text_of(start({0}, 2, "file://" + (folder / "no such/folder/meet"), options));
  INFO(nowhere);
  CHECK(contains(nowhere, "there is no folder " + (folder / "no such/folder")));
}

TEST_CASE("a rank that there is twice is told whose it is") {
  const auto program = small_training({"--steps", "1", "--connect-timeout", "5"});
  const auto results = start({0, 1, 1}, 2, tcp_url(), program);
  // Whichever of the two came first trains with rank 0.
  CHECK(results[0].status == 0);
  CHECK((results[1].status == 0) != (results[2].status == 0));
  const std::string refused = results[results[1].status == 0 ? 2 : 1].output;
  INFO(refused);
  CHECK(contains(refused, "two workers are rank 1 of 2: pid "));
}

TEST_CASE("workers that were told different world sizes are refused") {
  const std::string url = tcp_url();
  const auto program = small_training({"--steps", "1", "--connect-timeout", "3"});
  Process one(program +
              std::vector<std::string>{"--init-method", url, "--rank", "0", "--world-size", "2"});
  Process other(program +
                std::vector<std::string>{"--init-method", url, "--rank", "1", "--world-size", "3"});
  const std::string said = one.wait(limit).output + other.wait(limit).output;
  INFO(said);
  CHECK(contains(said, "but other workers of this job were told"));
}

TEST_CASE("a file that an earlier job left behind does no harm") {
  TemporaryFolder folder;
  const std::string path = folder / "meet";
  std::ofstream(path) << "ddprun-rendezvous 1\ntoken 0123456789abcdef\nworld 2\nstore 127.0.0.1 "
                      << free_port() << "\nend\n";
  require_success(start({1, 0}, 2, "file://" + path, small_training({"--steps", "1"})));
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("workers that were started with different options end before the first step") {
  const std::string url = tcp_url();
  const auto program = [&](int rank, const std::vector<std::string>& more) {
    return small_training({"--steps", "2"}) + more +
           std::vector<std::string>{"--init-method", url, "--rank",       std::to_string(rank),
                                    "--world-size",  "2", "--print-freq", "1"};
  };
  Process zero(program(0, {}), one_thread);
  Process one(program(1, {"--batch-size", "8", "--lr", "0.2"}), one_thread);
  for (const ProcessResult& result : {zero.wait(limit), one.wait(limit)}) {
    INFO(result.output);
    CHECK(result.status == 2);
    CHECK(contains(result.output,
                   "rank 1 has --batch-size 8 where rank 0 has 16, --lr 0.2 where rank 0 has 0.1"));
    CHECK_FALSE(contains(result.output, "Epoch:"));
  }
}

TEST_CASE("a worker that is stopped ends the others after --collective-timeout, with its name") {
  const std::string url = tcp_url();
  const auto program = [&](const std::string& rank) {
    return small_training({"--steps", "100000", "--print-freq", "1", "--collective-timeout", "1",
                           "--init-method", url, "--rank", rank, "--world-size", "2"});
  };
  Process zero(program("0"), one_thread);
  Process one(program("1"), one_thread);
  REQUIRE(zero.wait_for_output("Epoch: [1][ 3/16]", limit));

  one.send_signal(SIGSTOP);
  const ProcessResult result = zero.wait(limit);

  INFO(result.output);
  CHECK(result.status == 1);
  CHECK(contains(result.output, "timed out after 1 s (--collective-timeout sets the limit)"));
  CHECK(contains(result.output, "rank 1 did not answer (stopped"));
}

TEST_CASE("somebody's file is refused as a meeting place, by both ranks, and stays as it was") {
  TemporaryFolder folder;
  const std::string path = folder / "notes.txt";
  std::ofstream(path) << "milk";
  const auto results = start({1, 0}, 2, "file://" + path, small_training({"--steps", "1"}));
  for (const ProcessResult& result : results) {
    INFO(result.output);
    CHECK(result.status == 1);
    CHECK(contains(result.output, "is none of ddprun's"));
    CHECK_FALSE(contains(result.output, "--connect-timeout"));  // Time would not help.
  }
  CHECK(content_of(path) == "milk");
}

TEST_CASE("bad options are refused before anything is opened") {
  const auto said = [](const std::vector<std::string>& more) {
    const auto result = run(small_training(more), limit);
    CHECK(result.status == 2);
    return result.output;
  };
  CHECK(contains(said({"--init-method", "tcp://host"}), "expected env://, tcp://HOST:PORT"));
  CHECK(contains(said({"--dist-url", "tcp://host:1", "--rank", "2", "--world-size", "2"}),
                 "rank 2 in a world of 2: ranks are 0..1"));
  CHECK(contains(said({"--init-method", "tcp://host:1", "--world-size", "2"}),
                 "nothing says which worker this is"));
  CHECK(contains(said({"--interface", "no-such-interface"}), "lo (127.0.0.1/8)"));
}

TEST_CASE("the backend gloo says on rank 0 that cpu takes its place") {
  const auto results =
      start({0, 1}, 2, tcp_url(), small_training({"--steps", "1", "--dist-backend", "gloo"}));
  require_success(results);
  CHECK(contains(results[0].output, "the cpu backend takes its place"));
  CHECK_FALSE(contains(results[1].output, "gloo"));
}

TEST_CASE(
    "workers of two hosts meet by file and by address, also where rank 0 knows itself as "
    "localhost") {
  if (const auto reason = NetworkHosts::unavailable(); !reason.empty()) DDPRUN_SKIP(reason);
  const NetworkHosts hosts(2);
  TemporaryFolder folder;
  const std::string expected = launched_weights(folder / "launched", 2);
  for (const std::string& url :
       {"file://" + (folder / "meet"), "tcp://" + NetworkHosts::address(0) + ":29123"}) {
    std::filesystem::remove_all(folder / "run");
    std::vector<std::unique_ptr<Process>> workers;
    for (const int rank : {1, 0}) {
      workers.push_back(std::make_unique<Process>(
          hosts.on(rank, small_training({"--steps", "4", "--checkpoint-dir", folder / "run",
                                         "--init-method", url, "--rank", std::to_string(rank),
                                         "--world-size", "2"})),
          one_thread));
    }
    std::string said;
    for (auto& worker : workers) {
      const auto result = worker->wait(limit);
      INFO(url << "\n" << result.output);
      REQUIRE(result.status == 0);
      said += result.output;
    }
    CHECK(contains(said, "2 ranks on 2 hosts, TCP"));
    const bool same_weights = newest_tensors(folder / "run") == expected;
    CHECK(same_weights);
  }
}
