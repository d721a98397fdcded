// The command line of `train`, checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/data/augment.h"
#include "trainer/models/model_names.h"
#include "trainer/optimizer/decay_exclusion.h"
#include "trainer/optimizer/learning_rate.h"
#include "trainer/optimizer/precision_option.h"
#include "trainer/profile/profile_window.h"
#include "worker/worker_env.h"

namespace ddprun::trainer {

// Another try would end alike: the launcher then starts none (worker/error_file.h).
constexpr int usage_exit_code = 2;

// Options that contradict each other, the data or the number of workers. The message names them.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A place to write to that cannot be used: named wrong, or held by a training that is about to end.
class UnusablePlaceError : public UsageError {
 public:
  using UsageError::UsageError;
};

enum class DatasetKind { Mnist, Cifar10, Stl10, ImageFolder, Csv, Synthetic };
// "mnist", "cifar10", "stl10", "imagefolder", "csv" or "synthetic".
std::string name_of(DatasetKind kind);
// Of files of any size, each an image; the others are of one size.
bool lists_files(DatasetKind kind);
enum class DeviceOption { Auto, Cpu, Cuda };
enum class BackendOption { Auto, Cpu, Gloo, Nccl, Mpi };  // Gloo: understood as Cpu.
enum class LayoutOption { Auto, Nchw, ChannelsLast };
enum class ConvolutionOption { Auto, Direct };  // Auto: Winograd's where it pays.
enum class Tf32Option { Auto, On, Off };        // Auto: as LibTorch has it.
enum class OptimizerKind { Sgd, Lars };
// After the loss of a worker: all begin the next attempt anew, or those that are left go on. Auto:
// TrainOptions::recovers_in_place().
enum class RecoverOption { Auto, Restart, InPlace };
enum class GradientType { Parameters, BFloat16, Half };  // In which gradients travel.

struct TrainOptions {
  // Data.
  DatasetKind dataset = DatasetKind::Mnist;
  std::filesystem::path data;             // Empty: data/<dataset>, or nothing for synthetic.
  std::filesystem::path validation_data;  // imagefolder: a folder of classes; csv: a list.
  bool verify_data = false;               // Check SHA256SUMS of the data folder.
  bool download = false;                  // First fetch what is missing of a published set.
  std::string download_from;              // A mirror's address; empty: where the set is published.
  std::int64_t image_size = 0;            // 0: as the data set has it, or 224.
  std::int64_t val_resize_size = 0;       // 0: what is usual for the data set.
  bool augment_by_default = true;         // As is usual for the data set.
  AugmentOptions augment;                 // With the defaults not yet chosen.
  std::vector<float> mean, deviation;     // Of pixels from 0 to 1; empty: the data set's.
  bool skip_bad_images = false;
  std::int64_t synthetic_images = 12'800;
  std::int64_t synthetic_classes = 1000;
  int workers = 1;  // Loader threads.

  // Model.
  std::string model = "resnet18";
  StemChoice stem = StemChoice::Auto;
  std::filesystem::path weights;  // Start from these weights; empty = drawn from the seed.
  bool new_head = false;          // But not those of the last layer.
  bool zero_init_residual = false;

  // Training.
  std::optional<std::int64_t> epochs;             // Default 90, or as many as `steps` needs.
  std::optional<std::int64_t> steps;              // Optimizer steps of the whole run, at most.
  std::optional<std::int64_t> max_time_s;         // Of this process's training; then it stops.
  std::optional<std::int64_t> batch_size;         // Per worker and micro batch. Default 64.
  std::optional<std::int64_t> global_batch_size;  // Of a step, over all workers.
  std::int64_t accumulate = 1;                    // Micro batches a step.
  std::optional<int> shards;                      // A step has so many, whatever the workers.
  bool balance_shards = false;                    // By what they need for one.
  RecoverOption recover = RecoverOption::Auto;
  LearningRateOptions learning_rate;
  OptimizerKind optimizer = OptimizerKind::Sgd;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 1e-4;
  std::optional<DecayExclusion> no_decay;  // Default: decay_exclusion_of().
  double lars_trust = 0.001;
  double label_smoothing = 0;
  std::optional<double> clip_grad_norm;
  std::optional<double> ema_decay;
  bool sync_batch_norm = false;
  std::optional<std::int64_t> verify_sync;  // Every so many steps; 0: after each epoch.
  GradientType gradient_type = GradientType::Parameters;
  std::optional<std::int64_t> power_sgd;        // Gradients travel as matrices of that rank,
  std::optional<std::int64_t> power_sgd_start;  // after so many steps; PowerSgdOptions has which.
  std::uint64_t seed = 0;

  // Output.
  std::int64_t print_freq = 10;                    // Steps.
  bool step_lines = false;                         // --print-freq was given: lines by steps.
  bool print_all_ranks = false;                    // Not rank 0 alone.
  bool validation = true;                          // After each epoch and at the end.
  bool evaluate = false;                           // Only validate.
  std::string report;                              // A page of what `metrics` says; empty = none.
  std::string metrics;                             // JSON lines; empty = none. May hold {rank}.
  std::filesystem::path tensorboard;               // Folder of event files; empty = none.
  std::filesystem::path profile;                   // Folder of traces; empty = none.
  ProfileWindow profile_steps;                     // Which steps are traced.
  bool profile_operations = false;                 // LibTorch's operations too.
  std::optional<std::int64_t> print_sample_order;  // An epoch.

  // Checkpoints.
  std::filesystem::path checkpoint_dir;  // Empty: no checkpoints.
  std::int64_t checkpoint_every = 0;     // Steps; 0: at the end of epochs only.
  std::int64_t snapshot_every = 0;       // Steps; 0: none in memory.
  std::int64_t keep_checkpoints = 2;     // The newest so many stay.
  std::string resume = "auto";           // auto, none, or a file.
  bool resume_anyway = false;            // Also with other data than the checkpoint's.

  // Device.
  DeviceOption device = DeviceOption::Auto;
  BackendOption backend = BackendOption::Auto;
  std::vector<int> gpu_ids;  // By local rank, data_parallel of them each; empty: 0, 1, 2 ...
  bool share_gpu = false;    // All workers of the host on one GPU.
  Tf32Option tf32 = Tf32Option::Auto;
  std::optional<bool> cudnn_benchmark;  // Try out cuDNN's algorithms; unset: if all may be taken.
  bool cudnn_deterministic = false;     // Those alone that have the same bits each time.
  // Kernels of our own. Where nothing is said own_kernels() decides, once the device is known.
  std::optional<bool> fused_optimizer;
  std::optional<bool> fused_norm;
  std::optional<bool> fused_pool;      // Of the stem.
  std::optional<bool> working_copies;  // Of the weights, in the 16 bits of `precision`.
  bool resident_data = false;          // The data sets in the device's memory.
  bool device_normalize = false;       // Batches travel as bytes.
  bool device_jpeg = false;            // JPEG files are decoded on the device.
  bool cuda_graph = false;             // A step is recorded once and replayed.
  bool gpu_memory = false;             // Tell what takes the GPU's memory.
  worker::InitMethod init;             // Rank and meeting place, where no launcher says them.
  std::string interface;               // On which workers connect; "" = as the environment says.
  std::int64_t connect_timeout_s = 300;
  std::int64_t collective_timeout_s = 600;  // Of one exchange with the others.
  LayoutOption layout = LayoutOption::Auto;
  ConvolutionOption convolution = ConvolutionOption::Auto;
  PrecisionOption precision = PrecisionOption::Fp32;  // Of forward and loss.
  // Reduce gradients while backward computes the rest of them, or all at once after it.
  bool overlap = true;
  int data_parallel = 1;  // Replicas of the model in each worker.

  std::int64_t epochs_max() const;  // The number of epochs after which training ends by itself.
  // By what is the same on all ranks and in all attempts. Where no launcher offers another rank it
  // means nothing.
  bool recovers_in_place() const;
};

// --data, or the folder data/NAME. Empty for synthetic.
std::filesystem::path data_path(const TrainOptions& options);

// What is done to training images: --augment, or what is usual for the data set.
AugmentOptions augment_of(const TrainOptions& options);

// What weight decay leaves alone: --no-decay, or none with SGD and both kinds with LARS.
DecayExclusion decay_exclusion_of(const TrainOptions& options);

// The contradictions that can be seen without data or peers. Throws UsageError.
void check_options(const TrainOptions& options);

}  // namespace ddprun::trainer
