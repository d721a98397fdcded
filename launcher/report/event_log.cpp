// Fields of each event, in the order that docs/event_log.md gives them.
#include "launcher/report/event_log.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "launcher/report/failure_report.h"
#include "plot/half_line.h"
#include "rendezvous/json/json_text.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <class Duration>
std::int64_t microseconds(Duration time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

// What ended a write before its end, which the next one would be told. That one might land behind
// another launcher's line.
int error_of_short_write(int fd) {
  struct stat now {};
  rlimit limit{};
  const bool known = ::fstat(fd, &now) == 0 && ::getrlimit(RLIMIT_FSIZE, &limit) == 0;
  const bool at_limit = known && static_cast<rlim_t>(now.st_size) >= limit.rlim_cur;
  return at_limit ? EFBIG : ENOSPC;
}

std::string error_text(int error) {
  if (error == EFBIG) return "its file has reached the limit of sizes (ulimit -f)";
  return std::strerror(error);
}

// All that is given, in one call. What is refused (a full disk) is missing, and what comes next is
// tried again; behind half a line, of this or of another launcher, it begins a new one.
command_line::WriteCall write_whole_lines(const std::string& path, int fd) {
  return [path, file = std::make_shared<rendezvous::UniqueFd>(fd)](
             std::string_view lines) -> command_line::Written {
    const std::string text = (plot::ends_within_line(path) ? "\n" : "") + std::string(lines);
    const ssize_t count = ::write(file->get(), text.data(), text.size());
    if (count == static_cast<ssize_t>(text.size())) return {lines.size(), 0};
    const int error = count < 0 ? errno : error_of_short_write(file->get());
    if (error == EPIPE) return {0, error};  // Of a FIFO: nobody reads any more.
    return {lines.size(), error};
  };
}

void tell_end(const char* why) {
  spdlog::warn("cannot write the event log: {}; no further events are written", why);
}

// A FIFO waits for a reader, who may be about to come: that is said first. Writes wait as well, in
// the background.
int open_to_append(const std::string& path) {
  constexpr int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  const int fd = ::open(path.c_str(), flags | O_NONBLOCK, 0644);
  if (fd >= 0) ::fcntl(fd, F_SETFL, O_APPEND);
  if (fd >= 0 || errno != ENXIO) return fd;
  spdlog::warn("nobody reads --event-log={} yet: waiting for a reader", path);
  return ::open(path.c_str(), flags, 0644);
}

OrderedJson name_or_null(int signal) {
  return signal == 0 ? OrderedJson(nullptr) : OrderedJson(rendezvous::signal_name(signal));
}

}  // namespace

EventLog::EventLog(const std::string& path, std::string run_id, std::string host,
                   OutputForwarder& output)
    : run_id_(std::move(run_id)),
      host_(std::move(host)),
      started_(std::chrono::steady_clock::now()) {
  if (path.empty()) return;
  const int fd = open_to_append(path);
  if (fd < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot write the event log " + path);
  }
  file_ = output.add_file(
      write_whole_lines(path, fd), [](int error) { tell_end(std::strerror(error)); },
      [told = std::make_shared<bool>(false)](int error) {
        if (std::exchange(*told, true)) return;
        spdlog::warn("cannot write the event log: {}; events are missing there until it can",
                     error_text(error));
      });
}

EventLog::~EventLog() = default;

void EventLog::write(const char* event, const OrderedJson& fields) {
  if (!file_) return;
  OrderedJson object = {
      {"event", event},
      {"time_unix_us", microseconds(std::chrono::system_clock::now().time_since_epoch())},
      {"elapsed_us", microseconds(std::chrono::steady_clock::now() - started_)},
      {"run_id", run_id_},
      {"host", host_},
      {"launcher_pid", ::getpid()},
      {"attempt", attempt_}};
  object.update(fields);
  file_->add(rendezvous::json_line(object) + "\n");
  if (!file_->congested()) return;
  tell_end("its file system has taken nothing for long");
  file_.reset();
}

void EventLog::launcher_started(const LaunchOptions& options) {
  const bool elastic = options.backend == RendezvousBackend::C10d;
  write("launcher_started", {{"program", options.program_name},
                             {"elastic", elastic},
                             {"nodes_min", options.nnodes_min},
                             {"nodes_max", options.nnodes_max},
                             {"workers", options.nproc_per_node},
                             {"max_restarts", options.max_restarts}});
}

void EventLog::endpoint_opened(const std::string& address, int port) {
  write("endpoint_opened", {{"address", address}, {"port", port}});
}

void EventLog::waiting(const rendezvous::Waiting& waiting) {
  write("waiting",
        {{"joined", waiting.joined}, {"wanted", waiting.wanted}, {"text", waiting.text}});
}

void EventLog::attempt_started(const rendezvous::RoundStart& round) {
  attempt_ = round.attempt;
  write("attempt_started", {{"node_rank", round.group_rank},
                            {"nodes", round.group_world_size},
                            {"first_rank", round.rank_base},
                            {"world_size", round.world_size},
                            {"master_addr", round.master_addr},
                            {"master_port", round.master_port}});
}

void EventLog::worker_started(int rank, int local_rank, int worker_pid, bool was_spare,
                              bool was_kept) {
  write("worker_started", {{"rank", rank},
                           {"local_rank", local_rank},
                           {"worker_pid", worker_pid},
                           {"was_spare", was_spare},
                           {"was_kept", was_kept}});
}

void EventLog::worker_parked(int rank, int local_rank, int worker_pid, std::int64_t parked_ms) {
  write("worker_parked", {{"rank", rank},
                          {"local_rank", local_rank},
                          {"worker_pid", worker_pid},
                          {"parked_ms", parked_ms}});
}

void EventLog::stalled(const std::vector<int>& behind, const std::string& why,
                       bool counts_as_lost) {
  write("stalled", {{"behind", behind}, {"why", why}, {"counts_as_lost", counts_as_lost}});
}

void EventLog::straggler(const SlowRanks& slow) {
  write("straggler", {{"ranks", slow.ranks},
                      {"of_host", slow.host},
                      {"over", slow.over},
                      {"own_us", std::llround(1e6 * slow.own_s)},
                      {"others_us", std::llround(1e6 * slow.others_s)},
                      {"why", slow.why}});
}

void EventLog::worker_ended(const WorkerEnd& end) {
  write("worker_ended", {{"rank", end.rank},
                         {"local_rank", end.local_rank},
                         {"worker_pid", end.pid},
                         {"exit_code", end.exit_code},
                         {"signal", name_or_null(end.signal)},
                         {"core_dumped", end.core_dumped},
                         {"stopped", end.stopped_by_us},
                         {"ran_ms", end.ran_ms}});
}

void EventLog::spare_started(int place, int pid) {
  write("spare_started", {{"local_rank", place}, {"spare_pid", pid}});
}

void EventLog::spare_ready(int place, int pid, std::int64_t warmed_ms) {
  write("spare_ready", {{"local_rank", place}, {"spare_pid", pid}, {"warmed_ms", warmed_ms}});
}

void EventLog::spare_ended(int place, int pid, const ExitStatus& status) {
  write("spare_ended", {{"local_rank", place},
                        {"spare_pid", pid},
                        {"exit_code", status.exit_code},
                        {"signal", name_or_null(status.signal)}});
}

void EventLog::node_checked(const std::string& unfit, std::int64_t took_ms) {
  write("node_checked", {{"fit", unfit.empty()}, {"why", unfit}, {"took_ms", took_ms}});
}

void EventLog::signal_received(int signal, bool forwarded) {
  write("signal_received", {{"signal", name_or_null(signal)}, {"forwarded", forwarded}});
}

void EventLog::attempt_verdict(const rendezvous::Stop& stop) {
  write("attempt_verdict", {{"why", stop.why}, {"final", stop.final_verdict}});
}

void EventLog::attempt_ended(bool succeeded) { write("attempt_ended", {{"succeeded", succeeded}}); }

void EventLog::output_dropped(std::size_t bytes, const std::string& log_dir) {
  write("output_dropped", {{"bytes", bytes}, {"log_dir", log_dir}});
}

void EventLog::job_ended(int exit_status, const std::string& why,
                         const std::optional<rendezvous::FirstCause>& cause) {
  write("job_ended",
        {{"exit_status", exit_status},
         {"why", why},
         {"first_cause", cause ? OrderedJson(to_json(*cause)) : OrderedJson(nullptr)}});
}

}  // namespace ddprun::launcher
