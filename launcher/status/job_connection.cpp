// A launcher that was stopped, or is in a debugger, accepts connections and answers nothing; the
// kernel still says who it is.
#include "launcher/status/job_connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "launcher/status/run_folder.h"

namespace ddprun::launcher {
namespace {

using rendezvous::UniqueFd;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t answer_bytes_max = 64 << 20;  // A node may have thousands of workers.

int listener_of(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

bool send_request(int connection, const rendezvous::Query& query) {
  std::string line = fmt::format("{{\"ask\": \"{}\"", query.what);
  if (query.rank >= 0) line += fmt::format(", \"rank\": {}", query.rank);
  if (query.lines > 0) line += fmt::format(", \"lines\": {}", query.lines);
  line += "}\n";
  return ::send(connection, line.data(), line.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(line.size());
}

// Reads what is there; false when nothing more will come.
bool read_some(int connection, std::string& received) {
  char piece[65'536];
  const ssize_t count = ::recv(connection, piece, sizeof piece, MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  received.append(piece, static_cast<std::size_t>(count));
  return count > 0 && received.size() < answer_bytes_max;
}

// `error`: an errno, or 0. Without a descriptor a job that runs would look as one that has ended.
void need_descriptors(int error, const std::string& place) {
  if (error != EMFILE && error != ENFILE) return;
  throw std::system_error(error, std::generic_category(),
                          "cannot look for jobs in " + place + " (ulimit -n raises the limit)");
}

struct Question {
  UniqueFd connection;  // -1: answered, or given up.
  std::string received;
  std::string answer;  // "" = none.
};

// Until all are answered or the time is over.
void hear_all(std::vector<Question>& questions, milliseconds limit) {
  const auto until = steady_clock::now() + limit;
  for (;;) {
    std::vector<pollfd> waited;
    for (const Question& question : questions) {
      if (question.connection) waited.push_back({question.connection.get(), POLLIN, 0});
    }
    const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
    if (waited.empty() || left.count() <= 0) return;
    ::poll(waited.data(), waited.size(), static_cast<int>(left.count()) + 1);
    for (Question& question : questions) {
      if (!question.connection) continue;
      const bool more = read_some(question.connection.get(), question.received);
      const std::size_t end = question.received.find('\n');
      if (end != std::string::npos) question.answer = question.received.substr(0, end);
      if (!more || end != std::string::npos) question.connection.reset();
    }
  }
}

}  // namespace

UniqueFd connect_to_job(int folder, const std::string& name) {
  UniqueFd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto address = socket_address(folder, name);
  if (!connection || !address) return {};
  const auto* to = reinterpret_cast<const sockaddr*>(&*address);
  if (::connect(connection.get(), to, sizeof *address) == 0) return connection;
  // From another host, which a shared folder's name may be of, it is refused while it is in use.
  if (errno == ECONNREFUSED && is_of_this_machine(name)) ::unlinkat(folder, name.c_str(), 0);
  return {};
}

std::vector<FoundJob> find_jobs(const std::vector<std::string>& places, milliseconds limit) {
  std::vector<FoundJob> jobs;
  std::vector<Question> questions;
  for (const std::string& place : places) {
    std::string why;
    errno = 0;
    const UniqueFd folder = open_run_folder(place, /*make=*/false, why);
    if (!folder) need_descriptors(errno, place);
    if (!folder) continue;
    errno = 0;
    const std::vector<std::string> names = socket_names(folder.get());
    if (names.empty()) need_descriptors(errno, place);
    for (const std::string& name : names) {
      UniqueFd connection = connect_to_job(folder.get(), name);
      if (!connection) need_descriptors(errno, place);
      // Halted for long, it has more askers waiting than it takes.
      const bool is_full = !connection && errno == EAGAIN;
      if (!connection && !is_full) continue;
      const int pid = is_full ? std::atoi(name.c_str()) : listener_of(connection.get());
      jobs.push_back({place, name, pid, std::nullopt});
      rendezvous::Query query;
      query.what = "snapshot";
      if (connection && !send_request(connection.get(), query)) connection.reset();
      questions.push_back({std::move(connection), "", ""});
    }
  }
  hear_all(questions, limit);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].snapshot = parse_snapshot(questions[i].answer);
  }
  const auto order = [](const FoundJob& job) {
    return std::pair(job.snapshot ? job.snapshot->started_unix_s : 0, job.pid);
  };
  std::sort(jobs.begin(), jobs.end(),
            [&](const FoundJob& a, const FoundJob& b) { return order(a) < order(b); });
  return jobs;
}

std::optional<std::string> ask_job(const FoundJob& job, const rendezvous::Query& query,
                                   milliseconds limit) {
  std::string why;
  const UniqueFd folder = open_run_folder(job.folder, /*make=*/false, why);
  if (!folder) return std::nullopt;
  std::vector<Question> question(1);
  question[0].connection = connect_to_job(folder.get(), job.name);
  if (!question[0].connection || !send_request(question[0].connection.get(), query)) {
    return std::nullopt;
  }
  hear_all(question, limit);
  if (question[0].answer.empty()) return std::nullopt;
  return question[0].answer;
}

}  // namespace ddprun::launcher
