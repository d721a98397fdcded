// Tells others where the job stands without being asked to by a command: --metrics-file,
// --metrics-port, --status-page, and the server of Kubeflow Trainer v2 where the pod names one.
//
// All of them read the same snapshot, which costs nothing while nobody wants it.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "launcher/export/job_history.h"
#include "launcher/export/page_server.h"
#include "launcher/export/trainer_status.h"
#include "launcher/membership/background_call.h"
#include "launcher/options/launch_options.h"
#include "launcher/status/job_snapshot.h"

namespace ddprun::launcher {

class JobExport {
 public:
  // All references must outlive it.
  // `look`: at this node's GPUs and, with `others`, at the job's other nodes, of which the snapshot
  // then tells, too; calls back within a second.
  using Look = std::function<void(bool others, std::function<void()> done)>;
  JobExport(asio::io_context& io, const LaunchOptions& options,
            std::function<JobSnapshot()> snapshot, Look look);

  // Throws std::runtime_error when a port that was asked for cannot be had.
  void begin();
  // An attempt has begun, or was ended: one that is short must not pass between two looks.
  void changed();
  // The job is over on this node: the last words are written once what is under way is, and `done`
  // is called then; where servers hang, some ten seconds later.
  void end(int exit_status, std::function<void()> done);

 private:
  std::optional<HttpPage> metrics(const std::string& path);
  std::optional<HttpPage> page(const std::string& path);
  void look_again();
  JobSnapshot exported() const;
  void write_file(std::function<void()> done = {});
  void tell_trainer(std::optional<int> exit_status, std::function<void()> done = {});
  bool tells_trainer(const JobSnapshot& job) const;
  void say_last_words();

  asio::io_context& io_;
  const LaunchOptions& options_;
  std::function<JobSnapshot()> snapshot_;
  Look look_;
  asio::steady_timer timer_;
  int looks_ = 0;
  bool ended_ = false;
  std::function<void()> last_words_;
  JobHistory history_;
  // The wall clock may be set while the job runs.
  const std::chrono::system_clock::time_point made_at_ = std::chrono::system_clock::now();
  const std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
  std::string metrics_;  // As long as they may be told again.
  std::chrono::steady_clock::time_point metrics_until_;
  std::unique_ptr<PageServer> metrics_server_, page_server_;

  BackgroundCall file_call_;
  bool writing_ = false;
  bool file_failed_ = false;

  TrainerServer trainer_;  // No URL: none.
  BackgroundCall trainer_call_;
  bool telling_ = false;
  bool trainer_failed_ = false;
};

}  // namespace ddprun::launcher
