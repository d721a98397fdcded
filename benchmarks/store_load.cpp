// Load for a c10d store: how many requests it answers a second, and how late.
//
//   store_load --port P [--host 127.0.0.1] [--threads 8] [--seconds 1] [--pipeline 1]
//              [--operation add|set|get|check|wait|ping|multi_get] [--value-bytes 32]
//
// Each thread has one connection. With --pipeline 1 a request is sent when the one before has been
// answered (for `set`, which has no answer, a PING follows); with more, so many are sent at a time.
// `get` is what c10d's client does: a WAIT, and when that is answered, the GET. Prints one line of
// JSON with requests per second and the 50th, 99th and 99.9th percentile in microseconds.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/wire/wire.h"

namespace {

using namespace ddprun::rendezvous;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string host = "127.0.0.1";
  int port = 0;
  int threads = 8;
  double seconds = 1;
  int pipeline = 1;
  std::string operation = "add";
  std::size_t value_bytes = 32;  // Of set and get.
};

struct Step {
  std::string request;
  std::size_t reply_bytes;
};

std::string with_keys(StoreOp op, const std::vector<std::string>& keys) {
  std::string out(1, static_cast<char>(op));
  put_number<std::uint64_t>(out, keys.size());
  for (const auto& key : keys) put_string(out, key);
  return out;
}

std::string with_key(StoreOp op, const std::string& key) {
  std::string out(1, static_cast<char>(op));
  put_string(out, key);
  return out;
}

// What one operation of thread `thread` sends and gets.
std::vector<Step> steps_of(const Options& options, int thread) {
  const std::string& operation = options.operation;
  const std::string value(options.value_bytes, 'v');
  const std::string own = "/bench/thread/" + std::to_string(thread);
  std::string ping(1, static_cast<char>(StoreOp::Ping));
  put_number<std::uint32_t>(ping, 1);
  std::string set = with_key(StoreOp::Set, own);
  put_string(set, value);
  std::string add = with_key(StoreOp::Add, own + "/count");
  put_number<std::int64_t>(add, 1);
  const std::string shared = "/bench/shared";
  const std::vector<std::string> all(8, shared);
  if (operation == "ping") return {{ping, 4}};
  if (operation == "set") return {{set + ping, 4}};
  if (operation == "add") return {{add, 8}};
  if (operation == "check") return {{with_keys(StoreOp::Check, {shared}), 1}};
  if (operation == "wait") return {{with_keys(StoreOp::Wait, {shared}), 1}};
  if (operation == "get") {
    return {{with_keys(StoreOp::Wait, {shared}), 1},
            {with_key(StoreOp::Get, shared), 8 + value.size()}};
  }
  if (operation == "multi_get") {
    return {{with_keys(StoreOp::Wait, all), 1},
            {with_keys(StoreOp::MultiGet, all), 8 * (8 + value.size())}};
  }
  std::fprintf(stderr, "store_load: no operation named %s\n", operation.c_str());
  std::exit(2);
}

int connect_to(const Options& options) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(options.port));
  inet_pton(AF_INET, options.host.c_str(), &address.sin_addr);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    std::perror("store_load: connect");
    std::exit(1);
  }
  return fd;
}

void exchange(int fd, const std::string& request, std::size_t reply_bytes) {
  static thread_local std::vector<char> reply(1 << 20);
  std::size_t sent = 0;
  while (sent < request.size()) {
    const ssize_t n = ::send(fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) std::perror("store_load: send"), std::exit(1);
    sent += static_cast<std::size_t>(n);
  }
  while (reply_bytes > 0) {
    const ssize_t n = ::recv(fd, reply.data(), std::min(reply_bytes, reply.size()), 0);
    if (n <= 0) std::fprintf(stderr, "store_load: the store closed the connection\n"), std::exit(1);
    reply_bytes -= static_cast<std::size_t>(n);
  }
}

void hello(int fd) {
  std::string bytes(1, static_cast<char>(StoreOp::Validate));
  put_number(bytes, validate_magic);
  exchange(fd, bytes, 0);
  std::string ping(1, static_cast<char>(StoreOp::Ping));
  put_number<std::uint32_t>(ping, 1);
  exchange(fd, ping, 4);
}

// One thread's load, until `stop`. Returns the duration of every exchange in nanoseconds.
std::vector<std::uint32_t> load(const Options& options, int thread, const std::atomic<bool>& go,
                                const std::atomic<bool>& stop) {
  std::vector<Step> steps = steps_of(options, thread);
  for (Step& step : steps) {
    const std::string once = step.request;
    for (int i = 1; i < options.pipeline; ++i) step.request += once;
    step.reply_bytes *= static_cast<std::size_t>(options.pipeline);
  }
  const int fd = connect_to(options);
  hello(fd);
  std::vector<std::uint32_t> durations;
  durations.reserve(1 << 20);
  while (!go) std::this_thread::yield();
  while (!stop) {
    const auto start = Clock::now();
    for (const Step& step : steps) exchange(fd, step.request, step.reply_bytes);
    durations.push_back(static_cast<std::uint32_t>((Clock::now() - start).count()));
  }
  ::close(fd);
  return durations;
}

void report(const Options& options, std::vector<std::uint32_t>& all, double seconds) {
  std::sort(all.begin(), all.end());
  const auto at_us = [&](double part) {
    return all.empty() ? 0.0 : all[static_cast<std::size_t>(part * double(all.size() - 1))] / 1e3;
  };
  std::printf(
      "{\"operation\":\"%s\",\"threads\":%d,\"pipeline\":%d,\"per_second\":%.0f,"
      "\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f}\n",
      options.operation.c_str(), options.threads, options.pipeline,
      double(all.size()) * options.pipeline / seconds, at_us(0.5), at_us(0.99), at_us(0.999));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Load for a c10d store");
  app.add_option("--host", options.host, "Its IPv4 address");
  app.add_option("--port", options.port, "Its port")->required();
  app.add_option("--threads", options.threads, "Connections, one per thread")
      ->check(CLI::Range(1, 4096));
  app.add_option("--seconds", options.seconds, "How long");
  app.add_option("--pipeline", options.pipeline, "Requests sent at a time")
      ->check(CLI::Range(1, 4096));
  app.add_option("--operation", options.operation, "add, set, get, check, wait, ping, multi_get");
  app.add_option("--value-bytes", options.value_bytes, "Of set and get");
  CLI11_PARSE(app, argc, argv);

  const int fd = connect_to(options);
  hello(fd);
  std::string set = with_key(StoreOp::Set, "/bench/shared");
  put_string(set, std::string(options.value_bytes, 'v'));
  exchange(fd, set, 0);
  ::close(fd);

  std::atomic<bool> go = false;
  std::atomic<bool> stop = false;
  std::vector<std::vector<std::uint32_t>> durations(static_cast<std::size_t>(options.threads));
  std::vector<std::thread> threads;
  for (int i = 0; i < options.threads; ++i) {
    threads.emplace_back(
        [&, i] { durations[static_cast<std::size_t>(i)] = load(options, i, go, stop); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto start = Clock::now();
  go = true;
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  stop = true;
  for (auto& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::vector<std::uint32_t> all;
  for (const auto& part : durations) all.insert(all.end(), part.begin(), part.end());
  report(options, all, seconds);
}
