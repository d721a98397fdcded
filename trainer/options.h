// The command line of `train`, checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>

#include "trainer/learning_rate.h"
#include "trainer/models/model_names.h"

namespace ddprun::trainer {

// Options that contradict each other, the data or the number of workers. The message names them.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class DatasetKind { Mnist, Cifar10, Synthetic };
enum class DeviceOption { Auto, Cpu, Cuda };
enum class BackendOption { Auto, Cpu, Nccl };
enum class LayoutOption { Auto, Nchw, ChannelsLast };

struct TrainOptions {
  // Data.
  DatasetKind dataset = DatasetKind::Mnist;
  std::filesystem::path data;   // Empty: data/<dataset>, or nothing for synthetic.
  bool verify_data = false;     // Check SHA256SUMS of the data folder.
  std::int64_t image_size = 0;  // 0: as the data set has it.
  std::int64_t synthetic_images = 12'800;
  std::int64_t synthetic_classes = 1000;
  int workers = 1;  // Loader threads.

  // Model.
  std::string model = "resnet18";
  StemChoice stem = StemChoice::Auto;
  std::filesystem::path weights;  // Start from these weights; empty = drawn from the seed.

  // Training.
  std::optional<std::int64_t> epochs;             // Default 90, or as many as `steps` needs.
  std::optional<std::int64_t> steps;              // Optimizer steps of the whole run, at most.
  std::optional<std::int64_t> batch_size;         // Per worker. Default 64.
  std::optional<std::int64_t> global_batch_size;  // Over all workers.
  LearningRateOptions learning_rate;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  std::uint64_t seed = 0;

  // Output.
  std::int64_t print_freq = 10;                    // Steps.
  bool validation = true;                          // After each epoch and at the end.
  bool evaluate = false;                           // Only validate.
  std::filesystem::path metrics;                   // JSON lines; empty = none.
  std::optional<std::int64_t> print_sample_order;  // An epoch.

  // Checkpoints.
  std::filesystem::path checkpoint_dir;  // Empty: no checkpoints.
  std::int64_t checkpoint_every = 0;     // Steps; 0: at the end of epochs only.
  std::string resume = "auto";           // auto, none, or a file.

  // Device.
  DeviceOption device = DeviceOption::Auto;
  BackendOption backend = BackendOption::Auto;
  LayoutOption layout = LayoutOption::Auto;

  std::int64_t epochs_max() const;  // The number of epochs after which training ends by itself.
};

// What main must do after parsing: train, or end with this code (0 after --help, 2 after bad
// usage), when everything has been said on standard output or standard error.
struct ParsedCommandLine {
  std::optional<TrainOptions> options;
  int exit_code = 0;
};

ParsedCommandLine parse_command_line(int argc, const char* const* argv);

// The contradictions that can be seen without data or peers. Throws UsageError.
void check_options(const TrainOptions& options);

}  // namespace ddprun::trainer
