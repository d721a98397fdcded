// Which error ends train how: 2 for what the user can mend, 1 for the rest, and the launcher told.
#include "trainer/run_train.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <stdexcept>

#include "command_line/standard_streams.h"
#include "command_line/write_all.h"
#include "trainer/data/sets/data_file.h"
#include "trainer/device/device.h"
#include "trainer/download/download_set.h"
#include "trainer/evaluate.h"
#include "trainer/failure_text.h"
#include "trainer/make_training_job.h"
#include "trainer/open_dataset.h"
#include "trainer/options/read_command_line.h"
#include "trainer/recovery.h"
#include "trainer/train_loop.h"
#include "trainer/version.h"
#include "trainer/warm_up.h"
#include "worker/declare_failure.h"
#include "worker/error_file.h"
#include "worker/meeting.h"
#include "worker/network_interface.h"
#include "worker/progress_page.h"
#include "worker/wait_for_rank.h"

namespace ddprun::trainer {
namespace {

constexpr int failure_exit_code = 1;

// A spare has opened what there was of the set while the workers fetched the rest: that is opened
// anew.
void download(const TrainOptions& options, TrainingJob& begun) {
  PublishedSet set = published_set(name_of(options.dataset));
  if (!options.download_from.empty()) set = mirrored(std::move(set), options.download_from);
  try {
    download_set(set, options.data,
                 [](const std::string& line) { std::cout << line << std::endl; });
  } catch (const ForeignFileError& error) {
    throw UsageError(error.what());
  }
  begun.model.reset();  // Which is made for the images.
  begun.training_set.reset();
  begun.validation_set.reset();
}

// As all data that was given wrong: no attempt would find it better.
int verified_files(const std::filesystem::path& folder) {
  try {
    return verify_checksums(folder);
  } catch (const UnreadDataError&) {
    throw;
  } catch (const DataError& error) {
    throw UsageError(fmt::format("--verify-data: {}", error.what()));
  }
}

void verify_data(const TrainOptions& options, const worker::WorkerEnv& env) {
  const int files = verified_files(options.data);
  if (files == 0) {  // On another host there is another folder.
    throw UsageError(fmt::format(
        "--verify-data: there is no SHA256SUMS in {} that lists a file: make one with sha256sum",
        options.data.string()));
  }
  if (env.rank != 0) return;
  std::cout << fmt::format("{} files in {} have the expected checksums", files,
                           options.data.string())
            << std::endl;
}

// Not by std::cout, which goes on where a full disk took no more: a program reads this, and must
// hear that it is not all.
void print_sample_order(const TrainOptions& options, const worker::WorkerEnv& env) {
  const auto dataset = open_given(options, /*train=*/true);
  std::string text;
  for (const std::int64_t index :
       sample_order(dataset->size(), env, options.seed, *options.print_sample_order)) {
    text += std::to_string(index) + '\n';
  }
  command_line::wait_for_reader_of(STDOUT_FILENO);
  const command_line::Written done = command_line::write_all(STDOUT_FILENO, text);
  if (done.error == 0) return;
  throw std::runtime_error(
      fmt::format("--print-sample-order: cannot write to stdout ({}): {} of {} bytes are missing",
                  std::strerror(done.error), text.size() - done.bytes, text.size()));
}

// What was given is wrong: options, or a checkpoint or weights of something else.
bool is_of_the_user(const std::exception& error) {
  return dynamic_cast<const UsageError*>(&error) != nullptr ||
         dynamic_cast<const ForeignCheckpointError*>(&error) != nullptr;
}

// Whether every attempt of this command would meet it.
enum class Heals { Perhaps, Never };

Heals how_it_heals(const std::exception& error) {
  const bool of_the_user =
      is_of_the_user(error) && dynamic_cast<const UnusablePlaceError*>(&error) == nullptr;
  return of_the_user ? Heals::Never : Heals::Perhaps;
}

bool record(const std::string& what, Heals heals) {
  return heals == Heals::Never ? worker::record_usage_error(what) : worker::record_error(what);
}

// Whether a launcher shows what this process leaves in its error file: then all workers refuse the
// same options, and one message is enough.
bool launcher_will_tell(const std::string& what, Heals heals) {
  const auto file = worker::environment_variable("TORCHELASTIC_ERROR_FILE");
  if (!file || file->empty()) return false;
  worker::WorkerEnv env;
  env.error_file = *file;
  worker::install_error_handlers(env);  // Which may not have been done yet.
  return record(what, heals);
}

// Says it to people and to the launcher.
int fail(int exit_code, const worker::WorkerEnv& env, const std::string& what,
         Heals heals = Heals::Perhaps) {
  if (exit_code == usage_exit_code && launcher_will_tell(what, heals)) return exit_code;
  worker::record_error(what);
  std::cerr << "train: " << with_rank(env, what) << std::endl;
  return exit_code;
}

// The place of this worker. Those that no launcher told of it find it out together; with MPI there
// is nothing to find out.
worker::WorkerEnv meet(const TrainOptions& options, const worker::WorkerEnv& env) {
  static_cast<void>(worker::chosen_address(options.interface));  // Throws if there is none.
  if (options.print_sample_order || options.backend == BackendOption::Mpi) return env;
  return worker::meet_workers(env, communicator_options(options));
}

worker::WorkerEnv read_environment(const TrainOptions& options) {
  worker::InitMethod init = options.init;
  init.needs_store = options.backend != BackendOption::Mpi && !options.print_sample_order;
  return worker::read_worker_env(init);
}

// With shards sums must not depend on the number of workers, and they do on that of threads.
void tune(const TrainOptions& options, const worker::WorkerEnv& env) {
  tune_process(env, /*one_thread=*/options.shards.has_value());
}

// When --max-time begins: with the launcher, where one says when, since who gives it means the time
// that a scheduler has given the job, with all attempts and what nodes were waited for in it.
std::chrono::steady_clock::time_point start_of_job(const worker::WorkerEnv& env) {
  const auto now = std::chrono::steady_clock::now();
  if (!env.launched_at_s) return now;
  return std::min(now,
                  std::chrono::steady_clock::time_point(std::chrono::seconds(*env.launched_at_s)));
}

// From meeting the peers to the end; returns why there is one.
StopReason run_attempt(TrainingJob& job, const TrainOptions& options, const worker::WorkerEnv& env,
                       StopSignals& signals, std::chrono::steady_clock::time_point started) {
  make_training_job(job, options, env);
  signals.interrupt_meeting(-1);
  // A rank that hangs keeps all others from a common step: each then saves what it holds.
  if (job.members && could_save_alone(job)) signals.interrupt_steps(job.members->abort_fd());
  StopReason stop = StopReason::None;
  if (options.evaluate) {
    validate(job, /*in_epoch=*/false);
    job.reporter->last_page();
  } else {
    job.stop = std::make_unique<StopVote>(signals, job.communicator(), job.place.device,
                                          options.max_time_s, started);
    stop = train(job);
  }
  // So that no rank leaves, and closes its connections, while another still reads from it; and
  // not before rank 0 has a checkpoint on the disk, since a launcher stops all when the first one
  // ends.
  job.communicator().barrier();
  return stop;
}

// What a job that recovers in place has done since its last checkpoint is in its workers alone. So
// from the second attempt on a signal waits for a step that all agree on also where this worker has
// done none yet: it may have just come, and would take the others with it.
void keep_what_is_done(const TrainingJob& job, StopSignals& signals,
                       const worker::WorkerEnv& place) {
  signals.hold(/*tell=*/place.rank == 0);
  if (!could_save_alone(job)) return;
  signals.interrupt_meeting(job.members->options().interrupt_fd);
}

// What is being written is not lost with the attempt: a signal, which the launcher sends when a
// peer is gone, waits for it.
void finish_write(TrainingJob& job) {
  const StopSignals::DiskWait wait;
  job.writer.reset();
}

// Whether this worker has a rank in another attempt, which is in `env` then: it was thrown out of
// the last one by what became of its peers, and its launcher has said so. Not one that is told to
// end meanwhile, where it has something to save first.
bool has_next_attempt(TrainingJob& job, const TrainOptions& options, worker::WorkerEnv& env,
                      StopSignals& signals) {
  if (!job.members || !job.members->offered()) return false;
  finish_write(job);
  // Where no attempt follows the launcher says so by SIGTERM, and there is no step to agree on.
  worker::Membership::GiveUp told_to_end;
  if (could_save_alone(job)) {
    signals.stand_alone();
    told_to_end = [&signals] { return signals.is_told_to_end(); };
  } else {
    signals.let_go();
  }
  if (!job.members->attempt_is_over(told_to_end)) return false;
  leave_attempt(job);
  if (!next_rank(job, told_to_end)) return false;
  const worker::WorkerEnv place = read_environment(options);
  keep_what_is_done(job, signals, place);
  env = meet(options, place);
  return true;
}

// Returns the exit status.
int run(std::unique_ptr<TrainingJob> begun, const TrainOptions& options, worker::WorkerEnv& env,
        StopSignals& signals) {
  const auto started = start_of_job(env);
  if (options.download) download(options, *begun);
  if (options.verify_data) verify_data(options, env);
  if (options.print_sample_order) {
    print_sample_order(options, env);
    return 0;
  }
  const auto owned = std::move(begun);
  TrainingJob& job = *owned;
  if (options.recovers_in_place()) {
    job.members = std::make_unique<worker::Membership>();
    if (env.restart_count > 0 && job.members->offered()) keep_what_is_done(job, signals, env);
  }
  for (;;) {
    try {
      const int status = exit_status_of(run_attempt(job, options, env, signals, started));
      signals.done(status);
      job.device_watch.reset();  // Its work is done, and the communicator goes before it.
      return status;
    } catch (const std::exception& error) {
      // What comes now waits for the device, in destructors too, before anybody says why.
      if (job.device_watch) job.device_watch->ending(failure_text(error));
      const bool thrown_out = dynamic_cast<const worker::CommunicatorError*>(&error) != nullptr;
      if (thrown_out && has_next_attempt(job, options, env, signals)) continue;
      if (thrown_out && job.members && could_save_alone(job) && signals.is_told_to_end()) {
        finish_write(job);
        signals.stand_alone();  // Also where no launcher offers another attempt.
        save_alone(job, signals.wish());
        return exit_status_of(signals.wish());
      }
      if (job.members && job.members->job_is_over()) return failure_exit_code;  // Not its doing.
      // Here and not in run_train(): on the way there the exception would close the communicator,
      // and peers that notice could fail, and be blamed, before this rank has said what was the
      // matter.
      record(failure_text(error), how_it_heals(error));  // First: declare_failure() knows no fault.
      worker::declare_failure(job.place.communicator.get(), failure_text(error));
      finish_write(job);
      throw;
    }
  }
}

// As a worker that ddprun has started ahead. Returns with a rank; at once in any other process.
void become_worker(TrainingJob& job, const TrainOptions& options) {
  if (!worker::is_spare()) return;
  worker::WorkerEnv place;  // What is known of it.
  place.local_world_size = workers_of_node();
  tune(options, place);
  if (!options.print_sample_order) warm_up(job, options);
  worker::wait_for_rank();
}

}  // namespace

int run_train(int argc, const char* const* argv, PhaseHook on_phase) {
  // A file that meets the process's limit of sizes (ulimit -f) is then a write that fails, as on a
  // full disk, and no death of training for a log's sake. Python ignores it, too.
  ::signal(SIGXFSZ, SIG_IGN);
  worker::WorkerEnv env;
  if (argc < 2) {
    return fail(usage_exit_code, env,
                "say what to train on, such as --dataset mnist\n" + short_help(), Heals::Never);
  }
  const CommandLine command_line = read_command_line(argc, argv, version_text());
  if (!command_line.problem.empty())
    return fail(usage_exit_code, env, command_line.problem, Heals::Never);
  if (!command_line.options) return command_line.exit_code;
  // From here on, since a batch system may send SIGUSR1 while data is fetched and peers are met.
  StopSignals signals;
  auto job = std::make_unique<TrainingJob>();  // Its vote uses the signals, so it goes before them.
  job->on_phase = [hook = std::move(on_phase)](const TrainingJob& of, const std::string& phase) {
    worker::ProgressPage::own().phase(phase);
    if (hook) hook(of, phase);
  };
  try {
    become_worker(*job, *command_line.options);
    env = read_environment(*command_line.options);
  } catch (const worker::WorkerEnvError& error) {
    return fail(usage_exit_code, env, error.what());
  }
  worker::install_error_handlers(env);
  try {
    env = meet(*command_line.options, env);
    tune(*command_line.options, env);
    return run(std::move(job), *command_line.options, env, signals);
  } catch (const worker::WorkerEnvError& error) {
    return fail(usage_exit_code, env, error.what());
  } catch (const std::exception& error) {
    const int exit_code = is_of_the_user(error) ? usage_exit_code : failure_exit_code;
    return fail(exit_code, env, failure_text(error), how_it_heals(error));
  }
}

}  // namespace ddprun::trainer
