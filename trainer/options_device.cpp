// Options of `train`: where training computes and how workers talk.
#include "trainer/options_parts.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t data_parallel_max = 1024;

}  // namespace

void add_device_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Device");
  add_choice<DeviceOption>(
      app, "--device", options.device,
      {{"auto", DeviceOption::Auto}, {"cpu", DeviceOption::Cpu}, {"cuda", DeviceOption::Cuda}},
      "auto, cpu or cuda; auto: cuda where it can be used");
  add_choice<BackendOption>(
      app, "--backend", options.backend,
      {{"auto", BackendOption::Auto}, {"cpu", BackendOption::Cpu}, {"nccl", BackendOption::Nccl}},
      "How workers exchange gradients: auto, cpu or nccl");
  add_choice<LayoutOption>(app, "--memory-format", options.layout,
                           {{"auto", LayoutOption::Auto},
                            {"nchw", LayoutOption::Nchw},
                            {"channels-last", LayoutOption::ChannelsLast}},
                           "Order of activations in memory: auto, nchw or channels-last");
  add_choice<PrecisionOption>(
      app, "--precision", options.precision,
      {{"fp32", PrecisionOption::Fp32},
       {"bf16", PrecisionOption::Bf16},
       {"fp16", PrecisionOption::Fp16}},
      "Of forward and backward; weights stay fp32. fp16 scales the loss by itself");
  app.add_flag("!--no-overlap", options.overlap,
               "Exchange all gradients at once after backward, not while it computes");
  add_count(app, "--data-parallel", options.data_parallel, 1, data_parallel_max,
            "Replicas in each worker, which share its batch: threads on the CPU, or so many GPUs");
}

void check_device_options(const TrainOptions& options) {
  refuse_if(options.device == DeviceOption::Cpu && options.backend == BackendOption::Nccl,
            "--backend nccl needs GPUs, but --device cpu was given");
  refuse_if(options.device == DeviceOption::Cuda && options.backend == BackendOption::Cpu,
            "--backend cpu cannot reach the memory of --device cuda: use --backend nccl or auto");
  refuse_if(options.data_parallel > 1 && options.sync_batch_norm,
            "--sync-bn normalises over workers, which the replicas of --data-parallel cannot: give "
            "one worker to each device instead");
}

}  // namespace ddprun::trainer
