// Options of `train`: where training computes and how workers talk.
#include "trainer/options_parts.h"

namespace ddprun::trainer {

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
}

void check_device_options(const TrainOptions& options) {
  refuse_if(options.device == DeviceOption::Cpu && options.backend == BackendOption::Nccl,
            "--backend nccl needs GPUs, but --device cpu was given");
  refuse_if(options.device == DeviceOption::Cuda && options.backend == BackendOption::Cpu,
            "--backend cpu cannot reach the memory of --device cuda: use --backend nccl or auto");
}

}  // namespace ddprun::trainer
