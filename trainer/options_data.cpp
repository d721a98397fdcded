// Options of `train`: the data set and how it is read.
#include "trainer/options_parts.h"

namespace ddprun::trainer {
namespace {

constexpr int threads_max = 64;
constexpr std::int64_t image_size_max = 1024;

}  // namespace

void add_data_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Data");
  add_choice<DatasetKind>(app, "--dataset", options.dataset,
                          {{"mnist", DatasetKind::Mnist},
                           {"cifar10", DatasetKind::Cifar10},
                           {"synthetic", DatasetKind::Synthetic}},
                          "mnist, cifar10 or synthetic");
  app.add_option("--data", options.data, "Folder of the data files [data/<dataset>]");
  app.add_flag("--verify-data", options.verify_data, "Check the folder's SHA256SUMS first");
  add_count(app, "--image-size", options.image_size, 0, image_size_max,
            "Resize images to this side; synthetic: make them so [as the data has them; 32]");
  add_count(app, "--synthetic-images", options.synthetic_images, 1, count_max, "Images per pass");
  add_count(app, "--synthetic-classes", options.synthetic_classes, 1, 65'536, "Classes");
  add_count(app, "--workers", options.workers, 0, threads_max,
            "Threads that prepare batches ahead; 0: between the steps");
}

void check_data_options(const TrainOptions& options) {
  refuse_if(options.dataset == DatasetKind::Synthetic && !options.data.empty(),
            "--data has no meaning with --dataset synthetic, which reads no files");
  refuse_if(options.dataset == DatasetKind::Synthetic && options.verify_data,
            "--verify-data has no meaning with --dataset synthetic, which reads no files");
}

}  // namespace ddprun::trainer
