// LibTorch's own c10d store, both ends of it, for scripts/bench store:
//
//   store_torch serve                  the stock server; prints its port, ends with its input
//   store_torch load --ports P[,P...] [--operations add[,get...]] [--threads 8] [--slices 1]
//                    [--seconds 1] [--core C]
//
// Load: each thread is one client of LibTorch's, which sends a request when the one before has been
// answered. Operations: set, get, add, check, wait, multi_get (8 keys), and mixed: set, get, add
// and check in turn. With several servers they are loaded in turn, --seconds each, --slices times:
// what the machine does to one of them it then does to all. --core keeps all threads on one core.
//
// Prints one line of JSON for each slice: how far apart the first two cores were then
// (line_trip.h), and of each server the operations per second and the percentiles of their
// durations in microseconds (of `mixed` also those of its gets alone).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "benchmarks/line_trip.h"

namespace {

using Clock = std::chrono::steady_clock;
using Value = std::vector<uint8_t>;
using Client = c10::intrusive_ptr<c10d::TCPStore>;
using Durations = std::vector<std::uint32_t>;  // Nanoseconds, in the order of the operations.

struct Load {
  std::vector<std::string> ports;
  std::vector<std::string> operations{"add"};
  std::size_t threads = 8;
  int slices = 1;
  double seconds = 1;
  int core = -1;
};

const std::string shared_key = "bench/shared";
const Value value(32, 'v');
const char* const mix[] = {"set", "get", "add", "check"};
constexpr std::size_t mix_size = std::size(mix), get_in_mix = 1;

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

// One of each thread. They connect together: each looks up a name, which can take long.
std::vector<Client> clients_of(const std::string& port, std::size_t count) {
  std::vector<Client> clients(count);
  std::vector<std::thread> threads;
  for (Client& client : clients) {
    threads.emplace_back([&] {
      c10d::TCPStoreOptions options;
      options.port = static_cast<std::uint16_t>(std::stoi(port));
      options.waitWorkers = false;
      client = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    });
  }
  for (auto& thread : threads) thread.join();
  clients.front()->set(shared_key, value);
  return clients;
}

void operate(c10d::TCPStore& store, const std::string& operation, const std::string& own,
             std::size_t turn) {
  static const std::vector<std::string> one(1, shared_key);
  static const std::vector<std::string> eight(8, shared_key);
  const std::string& what = operation == "mixed" ? mix[turn % mix_size] : operation;
  if (what == "set") return store.set(own, value);
  if (what == "get") return void(store.get(shared_key));
  if (what == "add") return void(store.add(own + "/count", 1));
  if (what == "check") return void(store.check(one));
  if (what == "wait") return store.wait(one);
  if (what == "multi_get") return void(store.multiGet(eight));
  throw std::invalid_argument("no operation named " + what);
}

// One thread's load, until `stop`.
Durations run_client(c10d::TCPStore& store, const std::string& operation, std::size_t thread,
                     std::atomic<std::size_t>& ready, const std::atomic<bool>& go,
                     const std::atomic<bool>& stop) {
  const std::string own = "bench/thread/" + std::to_string(thread);
  Durations durations;
  durations.reserve(1 << 16);
  ++ready;
  go.wait(false);
  for (std::size_t turn = 0; !stop; ++turn) {
    const auto start = Clock::now();
    operate(store, operation, own, turn);
    durations.push_back(static_cast<std::uint32_t>((Clock::now() - start).count()));
  }
  // A set has no answer: those still on their way belong to the time that is measured.
  store.check({shared_key});
  return durations;
}

double percentile_us(Durations& durations, double part) {
  if (durations.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(part * double(durations.size() - 1));
  std::nth_element(durations.begin(), durations.begin() + at, durations.end());
  return durations[static_cast<std::size_t>(at)] / 1e3;
}

std::string report(const std::vector<Durations>& parts, bool mixed, double seconds) {
  Durations all, gets;
  for (const Durations& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
    for (std::size_t i = get_in_mix; mixed && i < part.size(); i += mix_size) {
      gets.push_back(part[i]);
    }
  }
  std::ostringstream text;
  text << "{\"per_second\":" << double(all.size()) / seconds
       << ",\"p50_us\":" << percentile_us(all, 0.5) << ",\"p99_us\":" << percentile_us(all, 0.99);
  if (mixed) {
    text << ",\"get_p50_us\":" << percentile_us(gets, 0.5)
         << ",\"get_p99_us\":" << percentile_us(gets, 0.99);
  }
  return text.str() + "}";
}

// One server under load.
std::string run_slice(const Load& load, const std::string& operation,
                      const std::vector<Client>& clients) {
  std::atomic<std::size_t> ready = 0;
  std::atomic<bool> go = false, stop = false;
  std::vector<Durations> durations(load.threads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < load.threads; ++i) {
    threads.emplace_back(
        [&, i] { durations[i] = run_client(*clients[i], operation, i, ready, go, stop); });
  }
  while (ready < load.threads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto start = Clock::now();
  go = true;
  go.notify_all();
  std::this_thread::sleep_for(std::chrono::duration<double>(load.seconds));
  stop = true;
  for (auto& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report(durations, operation == "mixed", seconds);
}

void run_load(const Load& load) {
  const std::vector<int> cores = ddprun::benchmarks::own_cores();
  if (load.core >= 0) ddprun::benchmarks::pin_to(load.core);
  std::vector<std::vector<Client>> servers;
  for (const std::string& port : load.ports) servers.push_back(clients_of(port, load.threads));
  for (const std::string& operation : load.operations) {
    for (int slice = 0; slice < load.slices; ++slice) {
      const double line_ns =
          cores.size() < 2 ? 0 : ddprun::benchmarks::line_trip_ns(cores[0], cores[1]);
      std::string results;
      for (const auto& clients : servers) {
        if (!results.empty()) results += ',';
        results += run_slice(load, operation, clients);
      }
      std::printf("{\"operation\":\"%s\",\"line_ns\":%.0f,\"servers\":[%s]}\n", operation.c_str(),
                  line_ns, results.c_str());
      std::fflush(stdout);
    }
  }
}

std::vector<std::string> list_of(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) items.push_back(item);
  return items;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "serve") == 0) {
    serve();
    return 0;
  }
  std::map<std::string, std::string> given;
  for (int i = 2; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  if (argc < 2 || std::strcmp(argv[1], "load") != 0 || list_of(given["--ports"]).empty()) {
    std::fprintf(stderr,
                 "usage: store_torch serve | load --ports P[,P...] [--operations NAME[,NAME...]] "
                 "[--threads N] [--slices N] [--seconds S] [--core C]\n");
    return 2;
  }
  Load load;
  load.ports = list_of(given["--ports"]);
  if (given.count("--operations")) load.operations = list_of(given["--operations"]);
  if (given.count("--threads")) load.threads = std::stoul(given["--threads"]);
  if (given.count("--slices")) load.slices = std::stoi(given["--slices"]);
  if (given.count("--seconds")) load.seconds = std::stod(given["--seconds"]);
  if (given.count("--core")) load.core = std::stoi(given["--core"]);
  run_load(load);
}
