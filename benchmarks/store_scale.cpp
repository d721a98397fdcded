// Many clients of one c10d store, all driven by one thread, for scripts/bench store:
//
//   store_scale --port P --clients N --server-pid PID
//
// 1. N clients connect and shake hands: seconds, and what the server's resident memory grew by per
//    client.
// 2. All of them wait for one key; one set releases them: milliseconds until the last has heard.
// 3. The start of a job of N ranks, as torch does it: ADD of the init key; rank 0 sets NCCL's
//    unique id, the others WAIT for it and GET it; a barrier by ADD, then WAIT for the key that the
//    last one sets. Seconds until every rank is through.
// Prints one line of JSON.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/wire/wire.h"

namespace {

using namespace ddprun::rendezvous;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds patience{20};
constexpr std::chrono::milliseconds parked_time{200};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "store_scale: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

std::string one_key(StoreOp op, const std::string& key) {
  std::string out(1, static_cast<char>(op));
  if (op == StoreOp::Wait) put_number<std::uint64_t>(out, 1);
  put_string(out, key);
  return out;
}
std::string set(const std::string& key, const std::string& value) {
  std::string out = one_key(StoreOp::Set, key);
  put_string(out, value);
  return out;
}
std::string add(const std::string& key, std::int64_t delta) {
  std::string out = one_key(StoreOp::Add, key);
  put_number(out, delta);
  return out;
}
std::string ping() {
  std::string out(1, static_cast<char>(StoreOp::Ping));
  put_number<std::uint32_t>(out, 7);
  return out;
}

// What a client sends next, and how many bytes answer it.
struct Step {
  std::string request;
  std::size_t reply_bytes = 0;
};

struct Client {
  int fd = -1;
  std::vector<Step> steps;
  std::size_t step = 0;
  std::size_t awaited = 0;
  std::string reply;
};

class Crowd {
 public:
  Crowd(int port, int count)
      : epoll_(::epoll_create1(EPOLL_CLOEXEC)), clients_(std::size_t(count)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      Client& client = clients_[i];
      client.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (client.fd < 0) die("socket");
      const int on = 1;
      ::setsockopt(client.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      if (::connect(client.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        die("connect");
      }
      epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
      if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, client.fd, &event) != 0) die("epoll_ctl");
    }
  }

  std::size_t size() const { return clients_.size(); }
  void give(std::size_t client, std::vector<Step> steps) {
    clients_[client].steps = std::move(steps);
    clients_[client].step = 0;
  }
  // Called with a reply; may change what the client does next.
  std::function<void(std::size_t client, const std::string& reply)> on_reply;

  void start(std::size_t client) {
    if (clients_[client].step < clients_[client].steps.size()) ++busy_;
    advance(clients_[client]);
  }
  void start_all() {
    for (std::size_t i = 0; i < clients_.size(); ++i) start(i);
  }

  // Until every client is through with its steps. It does not sleep: clients on other machines cost
  // the server no wake-ups, and to wake this thread for each message would.
  void run() {
    std::vector<epoll_event> events(1024);
    auto last_answer = Clock::now();
    while (busy_ > 0) {
      const int ready = ::epoll_wait(epoll_, events.data(), int(events.size()), 0);
      if (ready > 0) {
        last_answer = Clock::now();
      } else if (Clock::now() - last_answer > patience) {
        errno = ETIMEDOUT;
        die("the store does not answer");
      } else {
        ::sched_yield();  // The server may be on this core.
      }
      for (int i = 0; i < ready; ++i) receive(events[std::size_t(i)].data.u64);
    }
  }

 private:
  void advance(Client& client) {
    while (client.step < client.steps.size()) {
      const Step& step = client.steps[client.step];
      if (::send(client.fd, step.request.data(), step.request.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(step.request.size())) {
        die("send");
      }
      client.awaited = step.reply_bytes;
      client.reply.clear();
      if (client.awaited > 0) return;
      ++client.step;
    }
    --busy_;
  }

  void receive(std::size_t index) {
    Client& client = clients_[index];
    char bytes[4096];
    const ssize_t size = ::recv(client.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) die("the store closed a connection");
    client.reply.append(bytes, std::size_t(size));
    if (client.reply.size() < client.awaited) return;
    ++client.step;
    if (on_reply) on_reply(index, client.reply);
    advance(client);
  }

  int epoll_;
  std::vector<Client> clients_;
  std::size_t busy_ = 0;
};

double resident_bytes(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * double(::sysconf(_SC_PAGESIZE));
}

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void start_job(Crowd& crowd) {
  const auto ranks = static_cast<std::int64_t>(crowd.size());
  const std::string id(128, 'n');
  for (std::size_t rank = 0; rank < crowd.size(); ++rank) {
    std::vector<Step> steps = {{add("init", 1), 8}};
    if (rank == 0) {
      steps.push_back({set("nccl_id", id), 0});
    } else {
      steps.push_back({one_key(StoreOp::Wait, "nccl_id"), 1});
      steps.push_back({one_key(StoreOp::Get, "nccl_id"), 8 + id.size()});
    }
    steps.push_back({add("barrier", 1), 8});
    steps.push_back({one_key(StoreOp::Wait, "barrier/last"), 1});
    crowd.give(rank, steps);
  }
  // The last one to arrive releases the others, with its next send.
  crowd.on_reply = [&crowd, ranks, seen = std::int64_t{0}](std::size_t rank,
                                                           const std::string& reply) mutable {
    std::int64_t count = 0;
    if (reply.size() == sizeof count) std::memcpy(&count, reply.data(), sizeof count);
    if (reply.size() != sizeof count || count != ranks || seen++ == 0) return;
    crowd.give(rank, {{set("barrier/last", "1"), 0}});
  };
  crowd.start_all();
  crowd.run();
  crowd.on_reply = nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  int port = 0, count = 1'000, server_pid = 0;
  CLI::App app("Many clients of one c10d store");
  app.add_option("--port", port, "Its port")->required();
  app.add_option("--clients", count, "How many");
  app.add_option("--server-pid", server_pid, "Whose memory is read");
  CLI11_PARSE(app, argc, argv);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);

  const double before = resident_bytes(server_pid);
  auto start = Clock::now();
  Crowd crowd(port, count);
  std::string hello(1, static_cast<char>(StoreOp::Validate));
  put_number(hello, validate_magic);
  for (std::size_t i = 0; i < crowd.size(); ++i) crowd.give(i, {{hello + ping(), 4}});
  crowd.start_all();
  crowd.run();
  const double connect_s = since(start);
  const double per_client = (resident_bytes(server_pid) - before) / count;

  // All wait; a PING sent by the last one, behind its WAIT, would be answered at once, so one more
  // client tells that the waits have arrived: its PING is read after them.
  Crowd setter(port, 1);
  for (std::size_t i = 0; i < crowd.size(); ++i) {
    crowd.give(i, {{one_key(StoreOp::Wait, "release"), 1}});
  }
  crowd.start_all();
  setter.give(0, {{hello + ping(), 4}, {ping(), 4}});
  setter.start_all();
  setter.run();
  // What parked waits leave behind, delayed acknowledgements of 40 ms, is not the release's work.
  std::this_thread::sleep_for(parked_time);
  start = Clock::now();
  setter.give(0, {{set("release", "1") + ping(), 4}});
  setter.start_all();
  crowd.run();
  const double release_ms = 1e3 * since(start);
  setter.run();

  start = Clock::now();
  start_job(crowd);
  std::printf(
      "{\"clients\":%d,\"connect_s\":%.3f,\"bytes_per_client\":%.0f,\"release_ms\":%.2f,"
      "\"job_start_s\":%.4f}\n",
      count, connect_s, per_client, release_ms, since(start));
}
