// LibTorch's own c10d store, both ends of it, for scripts/bench store:
//
//   store_torch serve                  the stock server; prints its port, ends with its input
//   store_torch load --port P [--threads 8] [--seconds 1] [--operation add]
//
// Load: each thread is one client of LibTorch's, which sends a request when the one before has been
// answered. Operations: set, get, add, check, wait, multi_get (8 keys), and mixed: set, get, add
// and check in turn. Prints one line of JSON: operations per second, percentiles in microseconds.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Value = std::vector<uint8_t>;

struct Load {
  std::uint16_t port = 0;
  int threads = 8;
  double seconds = 1;
  std::string operation = "add";
};

const std::string shared_key = "bench/shared";
const Value value(32, 'v');

void serve() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const c10d::TCPStore store("127.0.0.1", options);
  std::printf("%d\n", int(store.getPort()));
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
}

c10::intrusive_ptr<c10d::TCPStore> client_of(std::uint16_t port) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

void operate(c10d::TCPStore& store, const std::string& operation, const std::string& own,
             std::size_t turn) {
  static const std::vector<std::string> one(1, shared_key);
  static const std::vector<std::string> eight(8, shared_key);
  static const char* const mix[] = {"set", "get", "add", "check"};
  const std::string& what = operation == "mixed" ? mix[turn % 4] : operation;
  if (what == "set") return store.set(own, value);
  if (what == "get") return void(store.get(shared_key));
  if (what == "add") return void(store.add(own + "/count", 1));
  if (what == "check") return void(store.check(one));
  if (what == "wait") return store.wait(one);
  if (what == "multi_get") return void(store.multiGet(eight));
  throw std::invalid_argument("no operation named " + what);
}

// One thread's load, until `stop`: the duration of each operation in nanoseconds.
std::vector<std::uint32_t> run_client(const Load& load, int thread, std::atomic<int>& ready,
                                      const std::atomic<bool>& go, const std::atomic<bool>& stop) {
  const auto store = client_of(load.port);
  const std::string own = "bench/thread/" + std::to_string(thread);
  std::vector<std::uint32_t> durations;
  durations.reserve(1 << 18);
  ++ready;
  go.wait(false);
  for (std::size_t turn = 0; !stop; ++turn) {
    const auto start = Clock::now();
    operate(*store, load.operation, own, turn);
    durations.push_back(static_cast<std::uint32_t>((Clock::now() - start).count()));
  }
  // A set has no answer: those still on their way belong to the time that is measured.
  store->check({shared_key});
  return durations;
}

void report(const Load& load, std::vector<std::uint32_t>& all, double seconds) {
  std::sort(all.begin(), all.end());
  const auto at_us = [&](double part) {
    return all.empty() ? 0.0 : all[static_cast<std::size_t>(part * double(all.size() - 1))] / 1e3;
  };
  std::printf(
      "{\"operation\":\"%s\",\"threads\":%d,\"per_second\":%.0f,\"p50_us\":%.1f,\"p99_us\":%.1f}\n",
      load.operation.c_str(), load.threads, double(all.size()) / seconds, at_us(0.5), at_us(0.99));
}

void run_load(const Load& load) {
  client_of(load.port)->set(shared_key, value);
  std::atomic<int> ready = 0;
  std::atomic<bool> go = false;
  std::atomic<bool> stop = false;
  std::vector<std::vector<std::uint32_t>> durations(static_cast<std::size_t>(load.threads));
  std::vector<std::thread> threads;
  for (int i = 0; i < load.threads; ++i) {
    threads.emplace_back(
        [&, i] { durations[static_cast<std::size_t>(i)] = run_client(load, i, ready, go, stop); });
  }
  while (ready < load.threads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto start = Clock::now();
  go = true;
  go.notify_all();
  std::this_thread::sleep_for(std::chrono::duration<double>(load.seconds));
  stop = true;
  for (auto& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::vector<std::uint32_t> all;
  for (const auto& part : durations) all.insert(all.end(), part.begin(), part.end());
  report(load, all, seconds);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "serve") == 0) {
    serve();
    return 0;
  }
  std::map<std::string, std::string> given;
  for (int i = 2; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  if (argc < 2 || std::strcmp(argv[1], "load") != 0 || given.count("--port") == 0) {
    std::fprintf(stderr,
                 "usage: store_torch serve | load --port P [--threads N] [--seconds S] "
                 "[--operation NAME]\n");
    return 2;
  }
  Load load;
  load.port = static_cast<std::uint16_t>(std::stoi(given["--port"]));
  if (given.count("--threads")) load.threads = std::stoi(given["--threads"]);
  if (given.count("--seconds")) load.seconds = std::stod(given["--seconds"]);
  if (given.count("--operation")) load.operation = given["--operation"];
  run_load(load);
}
