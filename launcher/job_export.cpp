// Files and servers may not answer, and the loop must: what goes out, goes from another thread.
// When something cannot be told it is said once, and the job goes on.
#include "launcher/job_export.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "launcher/export/prometheus_text.h"
#include "launcher/export/status_page.h"
#include "launcher/machine/this_machine.h"
#include "launcher/output/whole_file.h"
#include "rendezvous/control/visible_text.h"
#include "rendezvous/http/http_post.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds export_interval{2};  // Of the history, too.
constexpr int file_looks = 2;                       // The file is written each so many looks.
constexpr int trainer_looks = 15;  // Its controller reads reports twice a minute at most.
constexpr milliseconds metrics_pause{100};
constexpr milliseconds file_limit{5'000};
constexpr milliseconds trainer_limit{5'000};
constexpr std::size_t token_bytes_max = 64 << 10;

// The kubelet replaces the file before the token in it expires.
std::string bearer_token(const std::string& path) {
  std::ifstream in(path);
  std::string token;
  if (!std::getline(in, token) || token.empty() || token.size() > token_bytes_max) {
    throw std::runtime_error("cannot read a token in " + path);
  }
  return token;
}

void post_status(const TrainerServer& server, const std::string& body) {
  rendezvous::HttpRequest request{
      .url = server.url, .body = body, .authority_file = server.authority_file};
  request.limit = trainer_limit;
  request.headers = {"Content-Type: application/json"};
  if (!server.token_file.empty()) {
    request.headers.push_back("Authorization: Bearer " + bearer_token(server.token_file));
  }
  const rendezvous::HttpAnswer answer = rendezvous::http_post(request);
  if (answer.status >= 200 && answer.status < 300) return;
  const std::string words = answer.body.substr(0, answer.body.find('\n')).substr(0, 200);
  throw std::runtime_error(
      fmt::format("{} answers {}: {}", server.url, answer.status, rendezvous::visible_text(words)));
}

}  // namespace

JobExport::JobExport(asio::io_context& io, const LaunchOptions& options,
                     std::function<JobSnapshot()> snapshot, Look look)
    : io_(io),
      options_(options),
      snapshot_(std::move(snapshot)),
      look_(std::move(look)),
      timer_(io),
      file_call_(io, "the file of --metrics-file"),
      trainer_call_(io, "Kubeflow Trainer's server") {
  trainer_ = {environment_variable("KUBEFLOW_TRAINER_SERVER_URL").value_or(""),
              environment_variable("KUBEFLOW_TRAINER_SERVER_CA_CERT").value_or(""),
              environment_variable("KUBEFLOW_TRAINER_SERVER_TOKEN").value_or("")};
}

void JobExport::begin() {
  const auto before = [this](std::function<void()> done) {
    // Who asks on another node is told of that node, and disturbs no other.
    look_(snapshot_().node_rank == 0, std::move(done));
  };
  if (const auto& place = options_.metrics_port) {
    // The page is elsewhere: who opens the numbers to a network has not opened that.
    metrics_server_ = std::make_unique<PageServer>(
        io_, place->host, place->port, "--metrics-port", PageReaders::All,  // A scraper is another.
        [this](const std::string& path) { return metrics(path); }, before);
    spdlog::info("metrics at {}/metrics", metrics_server_->url());
  }
  if (const auto& place = options_.status_page) {
    page_server_ = std::make_unique<PageServer>(
        io_, place->host, place->port, "--status-page", PageReaders::OwnUser,
        [this](const std::string& path) { return page(path); }, before);
    spdlog::info("status page at {}/", page_server_->url());
  }
  if (!options_.metrics_file.empty() || page_server_ || !trainer_.url.empty()) look_again();
}

// Of the whole job on the node of rank 0, on others of their own: a scraper that reads several
// nodes must not read a rank twice.
JobSnapshot JobExport::exported() const {
  JobSnapshot job = snapshot_();
  if (job.node_rank != 0) job.others.clear();
  return job;
}

// Who asks again and again, as anybody may who reaches the port, shall not cost a look at all
// workers each time.
std::optional<HttpPage> JobExport::metrics(const std::string& path) {
  if (path != "/metrics") return std::nullopt;
  if (std::chrono::steady_clock::now() >= metrics_until_) {
    metrics_ = prometheus_text(exported());
    metrics_until_ = std::chrono::steady_clock::now() + metrics_pause;
  }
  return HttpPage{"text/plain; version=0.0.4; charset=utf-8", metrics_};
}

std::optional<HttpPage> JobExport::page(const std::string& path) {
  const std::string html = "text/html; charset=utf-8";
  if (path == "/") return HttpPage{html, status_page(exported())};
  if (path == "/content") {
    changed();
    return HttpPage{html, status_content(exported(), history_.records())};
  }
  if (path == "/status.json") return HttpPage{"application/json", to_json(exported()) + "\n"};
  return metrics(path);
}

void JobExport::changed() {
  metrics_until_ = {};
  if (!page_server_) return;
  const auto now = made_at_ + (std::chrono::steady_clock::now() - made_);
  history_.add(exported(), std::chrono::duration<double>(now.time_since_epoch()).count());
}

void JobExport::look_again() {
  const auto told = [this] {
    changed();
    if (looks_ % file_looks == 0) write_file();
    // The first report is worth more when there are workers.
    if (looks_ % trainer_looks == 1) tell_trainer(std::nullopt);
    ++looks_;
  };
  const bool shows_ranks = !options_.metrics_file.empty() || page_server_;
  if (shows_ranks) {
    look_(snapshot_().node_rank == 0, [this, told] {
      if (!ended_) told();
    });
  } else {
    told();
  }
  timer_.expires_after(export_interval);
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error) look_again();
  });
}

void JobExport::write_file(std::function<void()> done) {
  if (options_.metrics_file.empty() || writing_) {
    if (done) done();
    return;
  }
  writing_ = true;
  file_call_.start(
      [file = options_.metrics_file, text = prometheus_text(exported())] {
        const std::string problem = write_whole_file(file, text);
        if (!problem.empty()) throw std::runtime_error(problem);
      },
      file_limit,
      [this, done = std::move(done)](const std::string& why) {
        writing_ = false;
        if (!why.empty() && !file_failed_) {
          spdlog::warn("cannot write --metrics-file {}: {}", options_.metrics_file, why);
        }
        file_failed_ = !why.empty();
        if (done) done();
        say_last_words();
      });
}

// Rank 0's node, so that the job speaks with one voice.
bool JobExport::tells_trainer(const JobSnapshot& job) const {
  return !trainer_.url.empty() && job.first_rank == 0 && job.attempts > 0;
}

void JobExport::tell_trainer(std::optional<int> exit_status, std::function<void()> done) {
  const JobSnapshot job = exported();
  if (telling_ || !tells_trainer(job)) {
    if (done) done();
    return;
  }
  telling_ = true;
  trainer_call_.start(
      [server = trainer_, body = trainer_status(job, ::time(nullptr), exit_status)] {
        post_status(server, body);
      },
      trainer_limit + milliseconds{500},
      [this, done = std::move(done)](const std::string& why) {
        telling_ = false;
        if (!why.empty() && !trainer_failed_) {
          spdlog::warn("cannot tell Kubeflow Trainer how far the job is: {}", why);
        }
        trainer_failed_ = !why.empty();
        if (done) done();
        say_last_words();
      });
}

void JobExport::end(int exit_status, std::function<void()> done) {
  timer_.cancel();
  ended_ = true;
  last_words_ = [this, exit_status, done = std::move(done)] {
    write_file([this, exit_status, done] { tell_trainer(exit_status, done); });
  };
  say_last_words();
}

// What is under way tells of a job that runs, and must not be what stays.
void JobExport::say_last_words() {
  if (!writing_ && !telling_ && last_words_) std::exchange(last_words_, nullptr)();
}

}  // namespace ddprun::launcher
