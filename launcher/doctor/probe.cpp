// One thread that waits for its stdin and for other probes. While it measures it serves nobody: the
// plan of pairs gives no host two parts at once.
#include "launcher/doctor/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "command_line/write_all.h"
#include "launcher/doctor/gather_facts.h"
#include "launcher/doctor/probe_client.h"
#include "launcher/doctor/probe_message.h"
#include "launcher/doctor/probe_server.h"
#include "launcher/machine/this_machine.h"
#include "launcher/options/help.h"

namespace ddprun::launcher {
namespace {

// Far above what the longest of rounds takes; for the case that whoever asked is gone and its
// connection does not say so, or that a driver's library never returns.
constexpr unsigned patience_s = 900;

bool write_out(const std::string& line) {
  return command_line::write_all(STDOUT_FILENO, line).error == 0;
}

class Probe {
 public:
  int run();

 private:
  bool answer(const std::string& line);
  bool read_asks();

  ProbeServer server_;
  std::string received_;
};

bool Probe::answer(const std::string& line) {
  const auto ask = read_probe_ask(line);
  if (!ask) return false;
  switch (ask->what) {
    case ProbeAsk::What::Clock: {
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      return write_out(clock_line(std::chrono::duration<double>(now).count()));
    }
    case ProbeAsk::What::Facts:
      return write_out(to_line(gather_facts(ask->names, ask->nonce)));
    case ProbeAsk::What::Listen:
      return write_out(to_line(server_.listen(ask->token, ask->rendezvous_port)));
    case ProbeAsk::What::Connect:
      return write_out(to_line(measure_way(*ask, STDIN_FILENO)));
  }
  return false;
}

// False: it has ended, or says what is no ask.
bool Probe::read_asks() {
  std::array<char, 4'096> buffer{};
  const ssize_t size = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (size < 0) return errno == EINTR || errno == EAGAIN;
  if (size == 0) return false;
  received_.append(buffer.data(), static_cast<std::size_t>(size));
  for (std::size_t end = 0; (end = received_.find('\n')) != received_.npos;) {
    const std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    ::alarm(patience_s);
    if (!answer(line)) return false;
  }
  return received_.size() <= ask_bytes_max;
}

int Probe::run() {
  ::alarm(patience_s);
  const std::string connection = environment_variable("SSH_CONNECTION").value_or("");
  if (!write_out(to_line(ProbeHello{.version = version_text(), .ssh_connection = connection}))) {
    return 0;
  }
  for (;;) {
    std::vector<pollfd> wanted{{STDIN_FILENO, POLLIN, 0}};
    server_.add_to(wanted);
    constexpr int look_around_ms = 5'000;  // Guests that say nothing are sent away.
    if (::poll(wanted.data(), wanted.size(), look_around_ms) < 0 && errno != EINTR) return 1;
    if (wanted[0].revents != 0 && !read_asks()) return 0;
    server_.serve(wanted);
  }
}

}  // namespace

int run_probe() {
  // From a shell that ignores them it would outlive what should end it.
  ::signal(SIGALRM, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  const int status = Probe().run();
  // Threads may still wait for a resolver.
  std::_Exit(status);
}

}  // namespace ddprun::launcher
