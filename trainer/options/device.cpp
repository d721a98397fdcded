// Options of `train`: where training computes and how workers talk.
#include "trainer/options/parts.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t data_parallel_max = 1024;
constexpr int gpu_id_max = 1023;

std::optional<std::vector<int>> gpu_ids_of(const std::string& text) {
  std::vector<int> ids;
  for (const std::string& part : split_list(text)) {
    const auto id = parse_number<int>(part);
    if (!id || *id < 0 || *id > gpu_id_max) return std::nullopt;
    if (std::find(ids.begin(), ids.end(), *id) != ids.end()) return std::nullopt;
    ids.push_back(*id);
  }
  return ids;
}

// A switch --NAME and --no-NAME, of which the last one given counts.
void add_switch(CLI::App& app, const std::string& name, std::optional<bool>& value,
                const std::string& help) {
  // Not by a function, whose values CLI11 converts with exceptions of its own: any word behind the
  // name, in a file as well, would end the program.
  app.add_flag("--" + name + ",!--no-" + name, value, help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void add_kernel(CLI::App& app, const std::string& name, std::optional<bool>& kernel,
                const std::string& help) {
  add_switch(app, name, kernel, help + ". The default on a GPU where it applies");
}

}  // namespace

void add_device_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Device");
  add_choice<DeviceOption>(
      app, "--device", options.device,
      {{"auto", DeviceOption::Auto}, {"cpu", DeviceOption::Cpu}, {"cuda", DeviceOption::Cuda}},
      "auto, cpu or cuda; auto: cuda where it can be used");
  add_choice<BackendOption>(app, "--backend,--dist-backend", options.backend,
                            {{"auto", BackendOption::Auto},
                             {"cpu", BackendOption::Cpu},
                             {"gloo", BackendOption::Gloo},
                             {"mpi", BackendOption::Mpi},
                             {"nccl", BackendOption::Nccl}},
                            "How workers exchange gradients: auto, cpu (gloo means the same), "
                            "nccl, or mpi under mpirun");
  add_choice<LayoutOption>(app, "--memory-format", options.layout,
                           {{"auto", LayoutOption::Auto},
                            {"nchw", LayoutOption::Nchw},
                            {"channels-last", LayoutOption::ChannelsLast}},
                           "Order of activations in memory: auto (channels-last, the faster one), "
                           "nchw or channels-last");
  add_choice<ConvolutionOption>(
      app, "--conv-algorithm", options.convolution,
      {{"auto", ConvolutionOption::Auto}, {"direct", ConvolutionOption::Direct}},
      "Of convolutions on the CPU: auto (Winograd's where it is faster) or direct (LibTorch's "
      "own)");
  add_choice<PrecisionOption>(
      app, "--precision", options.precision,
      {{"fp32", PrecisionOption::Fp32},
       {"bf16", PrecisionOption::Bf16},
       {"fp16", PrecisionOption::Fp16}},
      "Of forward and backward; weights stay fp32. fp16 scales the loss by itself");
  app.add_flag(
      "--overlap,!--no-overlap", options.overlap,
      "Exchange gradients while backward computes (so it is where nothing is said), or all "
      "at once after it");
  add_count(app, "--collective-timeout", options.collective_timeout_s, 1, 7 * 86'400,
            "Seconds that one exchange between workers may take before the job ends with an error "
            "that names who did not come; one that takes 30 s is told of");
  app.add_option_function<std::string>(
         "--gpu-ids", [&](const std::string& text) { options.gpu_ids = gpu_ids_of(text).value(); },
         "GPUs of this host's workers in the order of local ranks, so many for each as "
         "--data-parallel says [0,1,2 ...]")
      ->type_name("N,...")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return gpu_ids_of(text) ? std::string()
                                    : "'" + text + "' is not a list of different GPUs, such as 0,2";
          },
          ""));
  app.add_flag(
      "--share-gpu", options.share_gpu,
      "All workers of this one host on its first GPU, or the first of --gpu-ids: a job over "
      "NCCL where there is one GPU, for tests. Each exchange takes milliseconds");
  add_choice<Tf32Option>(
      app, "--tf32", options.tf32,
      {{"auto", Tf32Option::Auto}, {"on", Tf32Option::On}, {"off", Tf32Option::Off}},
      "TF32 on GPUs, for what is float32: auto (convolutions, as PyTorch), on (matrix products "
      "too) or off");
  add_switch(app, "cudnn-benchmark", options.cudnn_benchmark,
             "Let cuDNN try out its convolutions in the first step of each shape (so it is where "
             "nothing is said, except with --cudnn-deterministic), or choose by its rules");
  app.add_flag(
      "--cudnn-deterministic", options.cudnn_deterministic,
      "Only algorithms of cuDNN that come to the same bits each time, chosen by its rules: may be "
      "slower");
  add_kernel(app, "fused-optimizer", options.fused_optimizer,
             "Update all parameters by one kernel of ours; with fp16 the loss scale stays on the "
             "GPU, so that no step waits for it. Not with lars");
  add_kernel(app, "fused-norm", options.fused_norm,
             "Batch normalisation with shortcut and ReLU in kernels of ours, for activations in "
             "channels-last order: the CPU's are fused as it is. Not with --sync-bn");
  add_kernel(app, "fused-pool", options.fused_pool,
             "The max-pooling of the ImageNet stem in kernels of ours that note a byte for each "
             "result: the CPU has such a kernel as it is");
  add_kernel(app, "working-copies", options.working_copies,
             "With --precision bf16 or fp16: keep the weights in 16 bits too, written by the "
             "fused optimizer, or by one kernel of ours a step, in the place of autocast's copies");
  app.add_flag("--resident-data,!--no-resident-data", options.resident_data,
               "Keep the data sets in the GPU's memory, up to 4 GiB each, and make batches there: "
               "for images of one size, with the crops and flips of the loader");
  app.add_flag(
      "--device-normalize,!--no-device-normalize", options.device_normalize,
      "Copy batches to the GPU as bytes, while the step before computes, and normalise them "
      "there by a kernel of ours");
  app.add_flag("--device-jpeg,!--no-device-jpeg", options.device_jpeg,
               "Decode JPEG files on the GPU, by nvJPEG, and cut and resize there as well; libjpeg "
               "decodes what nvJPEG does not, and all where there is none. Implies "
               "--device-normalize");
  app.add_flag("--cuda-graph,!--no-cuda-graph", options.cuda_graph,
               "Record a whole step once, its all-reduces too, and replay it by one launch: for "
               "steps in which the GPU waits for the host. Implies --fused-optimizer");
  app.add_flag("--gpu-memory", options.gpu_memory,
               "Tell at the start what stays in the GPU's memory, and after the first step what a "
               "batch takes besides");
  add_count(app, "--data-parallel", options.data_parallel, 1, data_parallel_max,
            "Replicas in each worker, which share its batch: threads on the CPU, or so many GPUs");
}

void add_launch_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Workers started without a launcher");
  app.add_option("--init-method,--dist-url", options.init.url,
                 "Where workers meet: env:// (MASTER_ADDR and MASTER_PORT), tcp://HOST:PORT of "
                 "rank 0, or file:///PATH that all of them see")
      ->capture_default_str()
      ->type_name("URL");
  add_count(app, "--rank", options.init.rank, 0, count_max, "This worker's number, from 0 [RANK]");
  add_count(app, "--world-size", options.init.world_size, 1, count_max,
            "Workers of the job [WORLD_SIZE]");
  add_count(app, "--local-rank", options.init.local_rank, 0, count_max,
            "This worker's number on its host, which is its GPU [LOCAL_RANK, else found out]");
  app.add_option("--interface", options.interface,
                 "Network interface that workers connect on: its name, an address of this host, "
                 "or a network as 10.1.0.0/16 [GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME]")
      ->type_name("NAME|ADDRESS|CIDR");
  add_count(app, "--connect-timeout", options.connect_timeout_s, 1, 86'400,
            "Seconds to wait for all workers at the start");
}

namespace {

// What a replay cannot do, for it decides nothing on the host.
void check_graph_options(const TrainOptions& options) {
  if (!options.cuda_graph) return;
  refuse_if(options.fused_optimizer == false,
            "--cuda-graph and --no-fused-optimizer contradict each other: no other kernel finds "
            "each step's learning rate in the GPU's memory");
  refuse_if(options.optimizer == OptimizerKind::Lars,
            "--cuda-graph and --optimizer lars contradict each other: its rates are found on the "
            "host");
  refuse_if(options.data_parallel > 1,
            "--cuda-graph is for one GPU a worker, and --data-parallel gives it several");
  refuse_if(options.shards.has_value(),
            "--cuda-graph and --shards contradict each other: the host adds up the shards");
  refuse_if(options.power_sgd.has_value(),
            "--cuda-graph and --power-sgd contradict each other: a replay does not look whether a "
            "matrix is to become thin yet");
  refuse_if(!options.profile.empty(),
            "--cuda-graph and --profile contradict each other: a replay has no parts to time");
  refuse_if(
      options.precision == PrecisionOption::Fp16 && (options.clip_grad_norm || options.ema_decay),
      "--cuda-graph with --precision fp16 allows neither --clip-grad-norm nor --ema, for "
      "which the host must hear of an overflow in each step; bf16 has none");
}

}  // namespace

void check_device_options(const TrainOptions& options) {
  check_graph_options(options);
  refuse_if(options.device == DeviceOption::Cpu && options.backend == BackendOption::Nccl,
            "--backend nccl needs GPUs, but --device cpu was given");
  refuse_if(options.device == DeviceOption::Cuda && options.backend == BackendOption::Cpu,
            "--backend cpu cannot reach the memory of --device cuda: use --backend nccl or auto");
  refuse_if(options.device == DeviceOption::Cpu && !options.gpu_ids.empty(),
            "--gpu-ids has no meaning with --device cpu");
  refuse_if(options.share_gpu && options.device == DeviceOption::Cpu,
            "--share-gpu has no meaning with --device cpu");
  refuse_if(options.fused_optimizer == true && options.optimizer == OptimizerKind::Lars,
            "--fused-optimizer and --optimizer lars contradict each other: the kernel has one rate "
            "for all layers");
  refuse_if(options.fused_norm == true && options.layout == LayoutOption::Nchw,
            "--fused-norm has kernels for --memory-format channels-last alone");
  refuse_if(options.fused_norm == true && options.sync_batch_norm,
            "--fused-norm and --sync-bn contradict each other: the kernels know the statistics of "
            "one rank");
  refuse_if(options.fused_pool == true && options.layout == LayoutOption::Nchw,
            "--fused-pool has kernels for --memory-format channels-last alone");
  refuse_if(options.working_copies == true && options.precision == PrecisionOption::Fp32,
            "--working-copies are in 16 bits: give --precision bf16 or fp16");
  refuse_if(options.working_copies == true && options.data_parallel > 1,
            "--working-copies and --data-parallel contradict each other: replicas make theirs of "
            "the weights that they are sent");
  refuse_if(options.device_normalize && options.resident_data,
            "--device-normalize has no meaning with --resident-data, which copies no batches");
  refuse_if(options.device_jpeg && options.dataset != DatasetKind::ImageFolder &&
                options.dataset != DatasetKind::Csv,
            "--device-jpeg is for --dataset imagefolder and csv: images of other sets are no JPEG "
            "files");
  refuse_if(options.share_gpu && options.data_parallel > 1,
            "--share-gpu puts all workers on one GPU, and --data-parallel each on several: give "
            "one of them");
  refuse_if(options.device == DeviceOption::Cuda &&
                (options.backend == BackendOption::Gloo || options.backend == BackendOption::Mpi),
            "--backend gloo and mpi cannot reach the memory of --device cuda: use --backend nccl "
            "or auto");
}

}  // namespace ddprun::trainer
