// The question to NCCL's RAS service, against a server of the test's own that speaks as NCCL does.
#include "launcher/stall/nccl_ras.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <set>
#include <thread>

#include "rendezvous/unique_fd.h"
#include "tests/testing/catch.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::rendezvous::UniqueFd;
using ddprun::testing::contains;
using ddprun::testing::patience;

namespace {

// Answers one connection: for each line it hears the next answer; "" = none, and it holds the
// connection until the client is gone. After the last one it closes.
class RasServer {
 public:
  explicit RasServer(std::vector<std::string> answers) : answers_(std::move(answers)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_.get(), 1) == 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~RasServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);  // Where nobody came.
    if (thread_.joinable()) thread_.join();
  }

  const std::string& address() const { return address_; }
  std::string heard() {
    thread_.join();
    return heard_;
  }

 private:
  void serve() {
    const UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
    std::string line;
    for (const std::string& answer : answers_) {
      while (client && line.find('\n') == std::string::npos) {
        char piece[256];
        const ssize_t count = ::recv(client.get(), piece, sizeof piece, 0);
        if (count <= 0) break;
        line.append(piece, static_cast<std::size_t>(count));
      }
      heard_ += line;
      line.clear();
      if (answer.empty()) {
        char more = 0;
        while (::recv(client.get(), &more, 1, 0) > 0) {
        }
      }
      // In two pieces, as TCP may have it.
      const std::size_t half = answer.size() / 2;
      ::send(client.get(), answer.data(), half, MSG_NOSIGNAL);
      ::send(client.get(), answer.data() + half, answer.size() - half, MSG_NOSIGNAL);
    }
  }

  UniqueFd listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::vector<std::string> answers_;
  std::string address_;
  std::string heard_;
  std::thread thread_;
};

std::size_t families_of_localhost() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo("localhost", nullptr, &hints, &found) != 0) return 0;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, ::freeaddrinfo);
  std::set<int> families;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    families.insert(each->ai_family);
  }
  return families.size();
}

constexpr const char* status =
    "NCCL version 2.28.9 compiled with CUDA 12.9\n\n"
    "Errors\n  DEAD\n    1 job process is considered dead\n";

}  // namespace

TEST_CASE("17.2: NCCL RAS is greeted, told how long to wait, and asked once", "[stall]") {
  RasServer server({"SERVER PROTOCOL 2\n", "OK\n", status});
  const RasAnswer answer = ask_nccl_ras(server.address(), patience(10s));
  CHECK(answer.why.empty());
  CHECK(answer.text + "\n" == status);
  const std::string heard = server.heard();
  INFO(heard);
  CHECK(heard.rfind("CLIENT PROTOCOL 2\nTIMEOUT ", 0) == 0);
  CHECK(heard.substr(heard.rfind("\n", heard.size() - 2)) == "\nVERBOSE STATUS\n");
}

TEST_CASE("17.2: a RAS service of another version is asked all the same", "[stall]") {
  RasServer server({"SERVER PROTOCOL 7\n", "ok\n", "fine"});
  const RasAnswer answer = ask_nccl_ras(server.address(), patience(10s));
  CHECK(answer.text == "fine");
  CHECK(answer.why.empty());
}

TEST_CASE("17.2: a RAS service that does not answer costs its limit, and what it said is kept",
          "[stall]") {
  RasServer silent({""});
  const RasAnswer none = ask_nccl_ras(silent.address(), 100ms);
  CHECK(none.text.empty());
  CHECK(none.why == "NCCL RAS at " + silent.address() + " has not answered within 100 ms");

  RasServer stranger({"HTTP/1.1 400 Bad Request\r\n"});
  CHECK(contains(ask_nccl_ras(stranger.address(), patience(10s)).why,
                 "speaks another protocol: HTTP/1.1 400"));
  RasServer leaves({"SERVER PROTOCOL 2\n"});
  CHECK(contains(ask_nccl_ras(leaves.address(), patience(10s)).why, "NCCL RAS at "));
}

TEST_CASE("17.2: where no RAS service is, that is said", "[stall]") {
  CHECK(contains(ask_nccl_ras("127.0.0.1:1", patience(10s)).why, "cannot be reached"));
  CHECK(contains(ask_nccl_ras("nowhere", 1s).why, "no port is named"));
  CHECK(contains(ask_nccl_ras("127.0.0.1:x", 1s).why, "cannot be asked"));
}

TEST_CASE("17.2: where no socket is left to ask NCCL RAS by, that is said", "[stall]") {
  constexpr int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  std::string why;
  const bool tried = ddprun::testing::with_failing_calls(
      {{__NR_socket, 1, type}}, EMFILE, [&] { why = ask_nccl_ras("127.0.0.1:1", 10s).why; });
  if (!tried) DDPRUN_SKIP("this kernel has no seccomp");
  CHECK(why == "NCCL RAS at 127.0.0.1:1 cannot be asked: Too many open files");
}

TEST_CASE("17.2: one address that refuses tells more of NCCL RAS than one without a socket",
          "[stall]") {
  if (families_of_localhost() < 2) DDPRUN_SKIP("localhost has one address here");
  std::string why;
  const bool tried =
      ddprun::testing::with_failing_calls({{__NR_socket, 0, AF_INET6}}, EAFNOSUPPORT,
                                          [&] { why = ask_nccl_ras("localhost:1", 10s).why; });
  if (!tried) DDPRUN_SKIP("this kernel has no seccomp");
  CHECK(why == "NCCL RAS at localhost:1 cannot be reached: Connection refused");
}
