// Which checkpoint a run goes on from, what may be overwritten, and how all ranks come to agree.
#include "trainer/resume.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "trainer/checkpoint/recipe_state.h"
#include "trainer/checkpoint/resume_position.h"
#include "trainer/checkpoint/weights_file.h"
#include "trainer/consistency/verify_sync.h"
#include "trainer/data_error.h"
#include "trainer/open_dataset.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {
namespace {

void resume_from(TrainingJob& job, Safetensors file, const std::filesystem::path& path) {
  std::string other_numbers = other_numbers_text(file.metadata, job.identity);
  const RestoredCheckpoint restored = restore_checkpoint(
      std::move(file), path.string(), job.identity, *job.model, job.checkpoint_parts,
      job.options.resume_anyway ? IdentityCheck::Anyway : IdentityCheck::Strict);
  job.state = restored.state;
  job.resumed = {{job.state.epoch, job.state.step}, std::move(other_numbers)};
  for (const std::string& warning : restored.warnings) job.reporter->warning(warning);
  for (const std::string& part : restored.unknown_parts) {
    if (job.options.evaluate && part != average_part_name) continue;  // None of its business.
    job.reporter->warning(
        job.options.evaluate
            ? fmt::format("{} holds averaged weights, too: add the --ema that it was trained with "
                          "to validate those as well",
                          path.string())
            : fmt::format(
                  "{} holds the state of '{}', which this run does not have: it is left out",
                  path.string(), part));
  }
  job.reporter->line(fmt::format("resumed from {}: epoch {}, step {}", path.string(),
                                 epoch_at_hand(job.state), job.state.step));
}

// No checkpoint is left to go on from. `any`: there were some, which could not be read.
void expect_none_was_there(const TrainingJob& job, bool any) {
  const std::string folder = job.options.checkpoint_dir.string();
  if (job.options.evaluate) {
    if (!any) return;
    throw CheckpointError(fmt::format(
        "no checkpoint in {} can be evaluated: give a sound one with --resume FILE{}", folder,
        job.folder->has_best()
            ? ", or the best weights with --weights " + folder + "/best.safetensors"
            : ""));
  }
  // Also when an earlier start found so: a restart of the job must not begin at step 0.
  const bool goes_on = job.options.resume == "auto" || job.env.restart_count > 0;
  if (!any && !(goes_on && job.folder->has_damaged())) return;
  throw CheckpointError(
      fmt::format("there is no checkpoint in {} to go on from: those that end in .corrupt were "
                  "damaged, or gave no finite loss. Start anew with another --checkpoint-dir, "
                  "put a good one there, or remove those",
                  folder));
}

// The newest checkpoint that can be read, of those that are further than `from_step`. Damaged ones
// are reported and put aside; a sound one of another run is an error, because going on would end in
// overwriting it.
bool resume_from_folder(TrainingJob& job, std::int64_t from_step) {
  std::vector<CheckpointName> names = job.folder->list();
  const bool any = !names.empty();
  for (; !names.empty() && names.back().step > from_step; names.pop_back()) {
    const auto path = job.folder->path_of(names.back());
    try {
      resume_from(job, job.folder->read(names.back()), path);
      job.last_saved = names.back();
      job.last_saved_best = job.state.best_prec1;
      return true;
    } catch (const CheckpointError&) {
      throw;  // Whole, but of another run, or not what --resume-anyway can make fit.
    } catch (const SafetensorsAccessError& error) {
      if (!job.options.evaluate) throw;  // It may be sound, and would be replaced in the end.
      job.reporter->warning(fmt::format("{}; trying the checkpoint before it", error.what()));
    } catch (const std::runtime_error& error) {
      const auto aside = job.folder->set_aside(names.back());
      // Where it lies from now on, and not where it was found.
      const bool unlisted = dynamic_cast<const UnlistedCheckpointError*>(&error) != nullptr;
      job.reporter->warning(
          fmt::format("{}; {}trying the checkpoint before it{}", error.what(),
                      aside == path ? "" : "renamed to " + aside.filename().string() + ", ",
                      unlisted ? "; if it is the right one: --resume " + aside.string() : ""));
    }
  }
  if (from_step >= 0) return false;  // There is something else to go on from.
  expect_none_was_there(job, any);
  return false;
}

void tell_of_folder(TrainingJob& job) {
  if (!job.folder) return;
  for (const std::string& warning : job.folder->warnings()) job.reporter->warning(warning);
}

// What a rank can begin with, for find_lead(). Of one step that which has its validation is
// further: it would be done and told of twice otherwise. Memory comes before a disk that is as far.
enum Source : std::int64_t { OnDisk, InMemory };

worker::StatePosition position_in(Source source, std::int64_t step, std::int64_t epoch) {
  return {step, 2 * epoch + source};
}

bool is_on_disk(const worker::StatePosition& position) { return position.epoch % 2 == OnDisk; }

// The newest snapshot of this node that fits, in model, parts and state. One that was torn is not
// there (its checksum), and one of another run is refused: whatever is the matter with it, there
// are other nodes, and the disk.
worker::StatePosition restore_snapshot(TrainingJob& job) {
  if (!job.snapshots) return {};
  for (Safetensors& snapshot : job.snapshots->read("memory")) {
    try {
      job.state = restore_checkpoint(
                      std::move(snapshot), "memory", job.identity, *job.model, job.checkpoint_parts,
                      job.options.resume_anyway ? IdentityCheck::Anyway : IdentityCheck::Strict)
                      .state;
      return position_in(InMemory, job.state.step, job.state.epoch);
    } catch (const std::runtime_error& error) {
      job.reporter->warning(fmt::format("{}; it is left out", error.what()));
    }
  }
  return {};
}

// The newest checkpoint that is as far as `step` and can be read: one that cannot must not win over
// a snapshot in memory. It is read for that only where the disk is ahead, which is seldom.
std::optional<CheckpointName> newest_readable(TrainingJob& job, std::int64_t step) {
  std::vector<CheckpointName> names = job.folder->list();
  for (; !names.empty() && names.back().step >= step; names.pop_back()) {
    try {
      job.folder->read(names.back());
      return names.back();
    } catch (const SafetensorsAccessError&) {
      return names.back();  // It may be sound: who goes on from it tells what is the matter.
    } catch (const std::runtime_error& error) {
      job.reporter->warning(fmt::format("{}; it is left out", error.what()));
    }
  }
  return std::nullopt;
}

// By rank.
std::vector<worker::StatePosition> gather_positions(TrainingJob& job,
                                                    const worker::StatePosition& own) {
  if (job.env.world_size == 1) return {own};
  torch::Tensor pair = torch::tensor({own.step, own.epoch}, torch::kInt64).to(job.place.device);
  const torch::Tensor all =
      worker::result_on_host(job.communicator(), worker::all_gather(job.communicator(), pair));
  std::vector<worker::StatePosition> ranks;
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    ranks.push_back({all[rank][0].item<std::int64_t>(), all[rank][1].item<std::int64_t>()});
  }
  return ranks;
}

bool lies_in_folder(const TrainOptions& options, const std::filesystem::path& file) {
  std::error_code error;
  const auto beside = std::filesystem::absolute(file, error).parent_path();
  return !error && std::filesystem::equivalent(beside, options.checkpoint_dir, error);
}

// Whether it is one of the folder's checkpoints, or a link to one, as last.safetensors is.
bool is_checkpoint_there(const TrainOptions& options, const std::filesystem::path& file) {
  std::error_code error;
  const auto meant = std::filesystem::canonical(file, error);
  return !error && lies_in_folder(options, meant) &&
         parse_checkpoint_name(meant.filename().string()).has_value();
}

UsageError would_overwrite(const TrainOptions& options, const CheckpointName& newest) {
  return UsageError(fmt::format(
      "--resume {} would overwrite later checkpoints ({}) in {}: use --resume auto to go on from "
      "them, or another --checkpoint-dir",
      options.resume, newest.file_name(), options.checkpoint_dir.string()));
}

// A run that does not continue the folder's history must not overwrite it. No attempt would: from
// the second one on the folder counts as this job's own, so there must be none.
void check_folder_is_free(const TrainingJob& job) {
  if (!job.folder || job.options.evaluate) return;
  const std::string folder = job.options.checkpoint_dir.string();
  const std::vector<CheckpointName> names = job.folder->list();
  if (names.empty() && job.folder->has_best()) {
    throw UsageError(
        fmt::format("--checkpoint-dir: {} has a best.safetensors, which this training would "
                    "overwrite, and no checkpoint to go on from: move it away, or give another "
                    "folder",
                    folder));
  }
  if (!names.empty()) throw would_overwrite(job.options, names.back());
}

// The same where training goes on from the file that --resume names, whose checksum this is: what
// it saves would push out the folder's own, whose steps tell nothing of whose they are.
void check_folder_continues(const TrainingJob& job, const std::string& checksum) {
  if (!job.folder || job.options.evaluate || job.env.restart_count > 0) return;
  const TrainOptions& options = job.options;
  const std::vector<CheckpointName> names = job.folder->list();
  const bool is_of_folder =
      is_checkpoint_there(options, options.resume) || job.folder->lists(checksum);
  if (names.empty()) return check_folder_is_free(job);
  if (!is_of_folder) {
    throw UsageError(fmt::format(
        "--resume {} is none of the checkpoints in {} ({}), which this training would remove: use "
        "--resume auto to go on from them, or another --checkpoint-dir",
        options.resume, options.checkpoint_dir.string(), names.back().file_name()));
  }
  if (names.back().step > job.state.step) throw would_overwrite(options, names.back());
}

void check_readable(const char* option, const std::string& name, const char* what) {
  if (::access(name.c_str(), R_OK) == 0) return;
  const int error = errno;
  if (!is_of_the_name(error)) throw_unread(fmt::format("{}: cannot read {}", option, name), error);
  throw UsageError(
      fmt::format("{}: cannot read {}: {}; name {}", option, name, std::strerror(error), what));
}

// Takes the file that `option` names. One that is there and is not what it should be was given
// wrong: no later attempt would find it otherwise.
template <typename Take>
auto take_named(const char* option, const Take& take) {
  try {
    return take();
  } catch (const SafetensorsAccessError&) {
    throw;  // It may be sound.
  } catch (const ForeignCheckpointError&) {
    throw;  // Counts as given wrong as it is.
  } catch (const SafetensorsError& error) {
    throw UsageError(fmt::format("{}: {}", option, error.what()));
  } catch (const CheckpointError& error) {
    throw UsageError(fmt::format("{}: {}", option, error.what()));
  }
}

// Training's own command with --evaluate validates what the training began with. Whoever names a
// file of that folder knows of its checkpoints.
void warn_of_passed_over(TrainingJob& job) {
  const TrainOptions& options = job.options;
  if (!options.evaluate || !job.folder || job.folder->list().empty()) return;
  if (lies_in_folder(options, options.weights)) return;
  job.reporter->warning(fmt::format(
      "--evaluate validates --weights {} and looks at no checkpoint in {}: to validate the newest "
      "of them leave --weights out",
      options.weights.string(), options.checkpoint_dir.string()));
}

// Training on other data is what weights are loaded for, and only worth a word; an evaluation would
// count right answers as wrong.
void start_from_weights(TrainingJob& job) {
  const std::string name = job.options.weights.string();
  const bool new_head = job.options.new_head;
  // Not before: a job that goes on from a checkpoint needs the file no more.
  check_readable("--weights", name, "a file of weights");
  const WeightsUse use = job.options.evaluate ? WeightsUse::Evaluation
                         : new_head           ? WeightsUse::TrainingNewHead
                                              : WeightsUse::Training;
  const auto [told, left_out_average] =
      take_named("--weights", [&] { return load_weights_file(name, use, *job.model); });
  const std::string labels = new_head ? "" : label_difference(told, job.identity);
  if (!labels.empty() && job.options.evaluate && !job.options.resume_anyway) {
    throw ForeignCheckpointError(
        fmt::format("{} was trained with other labels: {}. Give the data that it was trained on, "
                    "or --resume-anyway to evaluate all the same",
                    name, labels));
  }
  if (!labels.empty()) {
    job.reporter->warning(fmt::format(
        "{} was trained with other labels: {}{}", name, labels,
        job.options.evaluate ? ". --resume-anyway goes on"
                             : "; training goes on with its last layer (--new-head: a new one)"));
  }
  if (const std::string pixels = scale_difference(told, job.identity); !pixels.empty()) {
    job.reporter->warning(other_pixels_text(name, pixels));
  }
  if (left_out_average) {
    job.reporter->warning(fmt::format(
        "{} holds averaged weights (--ema), too, which --weights leaves out: {}", name,
        job.options.evaluate ? "--resume " + name + " --ema DECAY validates both"
                             : "a best.safetensors that was written beside it has the averaged"));
  }
  warn_of_passed_over(job);
  job.reporter->line("weights from " + name + (new_head ? ", with a new last layer" : ""));
}

// What is left of an epoch that was begun with other batches ends with another rest.
BatchPlan rest_of_epoch(const BatchPlan& plan, std::int64_t skipped_per_worker) {
  BatchPlan left = plan;
  left.samples_per_worker -= skipped_per_worker;
  const std::int64_t steps = steps_for(left.samples_per_worker, left.batch_size);
  left.last_batch_size = left.samples_per_worker - (steps - 1) * left.batch_size;
  return left;
}

// The number of workers or of images per step may be another than when the checkpoint was made.
void find_place_in_data(TrainingJob& job) {
  if (!job.training_set) return;  // --evaluate goes nowhere from here.
  TrainingState& state = job.state;
  ResumePosition position =
      resume_position(state.samples_done, job.training_set->size(), job.plan.replicas);
  const auto left_now = [&] { return rest_of_epoch(job.plan, position.skipped_per_worker); };
  // A lone last image comes with one that was seen: no other start could go on from here either.
  const bool lone =
      left_now().samples_per_worker > 0 && position.skipped_per_worker > 0 &&
      !can_train_last_batch(left_now(), *job.model, job.image_size, job.normalizing_workers());
  if (lone) {
    position.skipped_per_worker -= 1;
    position.repeated += job.plan.replicas;
  }
  if (position.repeated > 0) {
    job.reporter->warning(fmt::format(
        "the checkpoint was made after {} samples of the epoch, which {} {} cannot share "
        "{}: the last {} are seen again",
        state.samples_done, job.plan.replicas, job.options.shards ? "shards" : "workers",
        lone ? "without a last batch of one image each" : "evenly", position.repeated));
  }
  state.samples_done = position.skipped_per_worker * job.plan.replicas;
  const std::int64_t steps_max = job.options.steps.value_or(job.plan.total_steps);
  const std::int64_t epochs = std::min(job.options.epochs_max(), state.epoch + steps_max + 1);
  job.plan.total_steps = total_steps_from({state.step, state.epoch, position.skipped_per_worker},
                                          epochs, job.plan.samples_per_worker, job.plan.batch_size);
  if (job.options.steps) {
    job.plan.total_steps = std::min(job.plan.total_steps, *job.options.steps);
  }
  const BatchPlan left = left_now();
  const std::int64_t steps_left = steps_for(left.samples_per_worker, left.batch_size);
  job.plan.steps_ahead = (state.epoch + 1) * left.steps_per_epoch - steps_left - state.step;
  if (steps_left == 0) return;
  check_last_batch(left, *job.model, job.image_size, job.normalizing_workers());
}

bool names_file(const TrainOptions& options) {
  return options.resume != "auto" && options.resume != "none";
}

// Of the file that --resume names. -1: there is none, or it is not there any more, as one that this
// job has replaced, or it cannot be read, which whoever goes on from it will tell; or it is one of
// the folder's, or a link to the newest of them, and that one is gone on from.
std::int64_t step_in_file(const TrainOptions& options) {
  if (!names_file(options) || is_checkpoint_there(options, options.resume)) return -1;
  try {
    return step_of(read_safetensors(options.resume), options.resume);
  } catch (const std::runtime_error&) {
    return -1;
  }
}

// A restarted job goes on from its own progress, whatever --resume said of its first start. What is
// not further than the file that it began with is none, and an evaluation makes none.
bool goes_on_from_folder(TrainingJob& job) {
  const TrainOptions& options = job.options;
  const std::string folder = options.checkpoint_dir.string();
  const bool restarted = job.env.restart_count > 0 && !options.evaluate;
  // Training's own command may say `none`; there is nothing but the folder to evaluate then.
  const bool evaluates = options.evaluate && !names_file(options);
  if (!job.folder || (options.resume != "auto" && !restarted && !evaluates)) return false;
  const bool found = resume_from_folder(job, step_in_file(options));
  if (found && !restarted && !options.weights.empty()) {
    job.reporter->warning(fmt::format(
        "--weights {} is not used: training goes on from the checkpoint in {}; to start from these "
        "weights give another --checkpoint-dir",
        options.weights.string(), folder));
  }
  if (!found && restarted) {
    job.reporter->warning(fmt::format(
        "attempt {} finds no later checkpoint in {} and begins where the first one did: none was "
        "saved yet, or the folder is not the same one on all nodes",
        job.env.restart_count, folder));
  }
  return found;
}

// Of who has begun anew the folder knows none.
void keep_to_written_best(TrainingJob& job) {
  if (!job.folder || job.options.evaluate || job.state.step == 0) return;
  const double told = job.state.best_prec1;
  job.state.best_prec1 =
      written_best(*job.folder, job.identity, told,
                   [&job](const std::string& text) { job.reporter->warning(text); });
  if (job.state.best_prec1 <= told) return;
  job.reporter->line(
      fmt::format("best.safetensors has a top-1 of {:.2f} %, and is kept until one is better",
                  job.state.best_prec1));
}

// What another rank gave tells of a folder that only rank 0 sees.
void share_best(TrainingJob& job) {
  keep_to_written_best(job);
  torch::Tensor best = torch::tensor({job.state.best_prec1}, torch::kFloat64).to(job.place.device);
  worker::broadcast(job.communicator(), best, /*root=*/0);
  job.state.best_prec1 = worker::result_on_host(job.communicator(), best).item<double>();
}

// For what is read and saved from here on. An evaluation's accuracy is compared with none.
void know_validation(TrainingJob& job) {
  if (!job.validation_set || job.options.evaluate || job.identity.validation) return;
  const Dataset& set = *job.validation_set;
  const SampleOptions samples = sample_options(job.options, set, job.image_size, /*train=*/false);
  job.identity.validation = {.list_checksum = identify(set).list_checksum,
                             .resize = samples.transform.resize_side,
                             .averaged = job.options.ema_decay.has_value()};
}

}  // namespace

double written_best(const CheckpointFolder& folder, const RunIdentity& identity, double known,
                    const std::function<void(const std::string& text)>& warn) {
  if (!folder.has_best()) return 0;
  try {
    return accuracy_in(folder.read_best(), "best.safetensors", identity);
  } catch (const SafetensorsAccessError&) {  // It may be what is known of.
    return known;
  } catch (const std::runtime_error& error) {
    warn(fmt::format("{}; the next validation's weights replace it", error.what()));
    return 0;
  }
}

void check_new_start(const TrainingJob& job) {
  if (job.options.resume == "none" && job.env.restart_count == 0) check_folder_is_free(job);
}

void bring_to_start(TrainingJob& job) {
  if (!job.is_first_rank()) return;
  tell_of_folder(job);
  const TrainOptions& options = job.options;
  if (options.evaluate && !options.weights.empty()) return start_from_weights(job);
  if (goes_on_from_folder(job)) return;
  if (names_file(options)) {
    check_readable("--resume", options.resume, "a checkpoint");
    Safetensors file = take_named("--resume", [&] { return read_checkpoint_file(options.resume); });
    const auto checksum = file.metadata.find(checksum_key);
    const std::string is_known_by = checksum == file.metadata.end() ? "" : checksum->second;
    resume_from(job, std::move(file), options.resume);
    check_folder_continues(job, is_known_by);
    return;
  }
  check_folder_is_free(job);
  if (!options.weights.empty()) {
    start_from_weights(job);
  } else if (options.evaluate) {
    throw UsageError(
        fmt::format("--evaluate: there is no checkpoint in {}: give another --checkpoint-dir, "
                    "--resume FILE or --weights FILE",
                    options.checkpoint_dir.string()));
  }
}

worker::StateLead find_snapshot(TrainingJob& job) {
  know_validation(job);
  if (job.options.snapshot_every == 0 || job.env.restart_count == 0 || job.options.evaluate) {
    return {};
  }
  const bool ruined = job.snapshots && job.snapshots->is_ruined();
  if (worker::find_lead(gather_positions(job, {ruined ? 0 : -1, 0})).any) {
    if (job.snapshots) job.snapshots->clear();
    return {};
  }
  worker::StatePosition own = restore_snapshot(job);
  const auto saved = job.folder ? newest_readable(job, own.step) : std::nullopt;
  if (saved) own = std::max(own, position_in(OnDisk, saved->step, saved->epoch));
  worker::StateLead lead = worker::find_lead(gather_positions(job, own));
  if (!lead.any || is_on_disk(lead.position)) return {};
  if (saved) job.last_saved = *saved;
  tell_of_folder(job);
  // Also where all have that step: two attempts may have done it, with other results.
  lead.complete = false;
  return lead;
}

void verify_snapshot(TrainingJob& job, const worker::StateLead& lead) {
  if (job.env.world_size > 1) {
    verify_sync(job.communicator(),
                tensors_to_compare(*job.model, *job.optimizer, job.average.get(),
                                   /*running_statistics=*/true),
                job.place.device, job.state.step);
  }
  job.reporter->line(
      fmt::format("resumed from memory{}: epoch {}, step {}",
                  lead.root == 0 ? "" : fmt::format(" of the node of rank {}", lead.root),
                  epoch_at_hand(job.state), job.state.step));
}

TrainingState share_position(TrainingJob& job, int root) {
  const TrainingState& own = job.state;
  // One broadcast for all four: a double holds whole numbers up to 2^53.
  torch::Tensor numbers =
      torch::tensor({static_cast<double>(own.epoch), static_cast<double>(own.samples_done),
                     static_cast<double>(own.step), own.best_prec1},
                    torch::kFloat64)
          .to(job.place.device);
  worker::broadcast(job.communicator(), numbers, root);
  numbers = worker::result_on_host(job.communicator(), numbers);
  const double* value = numbers.data_ptr<double>();
  return {static_cast<std::int64_t>(value[0]), static_cast<std::int64_t>(value[1]),
          static_cast<std::int64_t>(value[2]), value[3]};
}

void share_state(TrainingJob& job, const worker::StateLead& lead) {
  know_validation(job);
  if (!lead.any || lead.root == 0) keep_to_written_best(job);
  if (job.env.world_size == 1) return find_place_in_data(job);
  job.state = share_position(job, lead.root);
  if (lead.root != 0) share_best(job);
  find_place_in_data(job);
  if (job.state.step > 0 && !lead.any) {
    share_parts(job.checkpoint_parts, job.communicator(), job.place.device, lead.root);
  }
}

}  // namespace ddprun::trainer
