// Options of `train`: the data set and how it is read.
#include <algorithm>
#include <cmath>

#include "trainer/options/parts.h"

namespace ddprun::trainer {
namespace {

constexpr int threads_max = 64;
constexpr std::int64_t image_size_max = 1024;

// --augment: words that are not compatible with each other are found by check_data_options().
void read_augment(const std::string& text, TrainOptions& options) {
  AugmentOptions& augment = options.augment;
  augment.flip = augment.pad_crop = augment.random_resized_crop = false;
  options.augment_by_default = text == "auto";
  if (text == "auto" || text == "none") return;
  for (const std::string& word : split_list(text)) {
    if (word == "flip") {
      augment.flip = true;
    } else if (word == "pad-crop") {
      augment.pad_crop = true;
    } else if (word == "random-resized-crop") {
      augment.random_resized_crop = true;
    } else {
      throw CLI::ValidationError("--augment",
                                 "\"" + word +
                                     "\" is none of flip, pad-crop, "
                                     "random-resized-crop (auto and none stand alone)");
    }
  }
}

void add_range(CLI::App& app, const std::string& name, double& min, double& max,
               const std::string& help, const std::string& shown) {
  // One text: of a list with three numbers CLI11 would take the last two.
  app.add_option_function<std::string>(
         name,
         [&min, &max, name](const std::string& text) {
           const std::vector<std::string> parts = split_list(text);
           const auto first = parse_number<double>(parts.front());
           const auto second = parse_number<double>(parts.back());
           if (parts.size() != 2 || !first || !second) {
             throw CLI::ValidationError(name, "needs two numbers, MIN,MAX, not '" + text + "'");
           }
           min = *first;
           max = *second;
         },
         help)
      ->type_name("MIN,MAX")
      ->default_str(shown);
}

// One text here, too: lists that are given one after the other CLI11 would join.
void add_channel_numbers(CLI::App& app, const std::string& name, std::vector<float>& numbers,
                         const std::string& help, const std::string& shown) {
  app.add_option_function<std::string>(
         name,
         [&numbers, name](const std::string& text) {
           numbers.clear();
           for (std::string part : split_list(text)) {
             std::erase(part, ' ');
             const auto number = parse_number<float>(part);
             if (!number || !std::isfinite(*number)) {
               throw CLI::ValidationError(
                   name,
                   "needs a number for each channel, with commas, such as 0.5,0.5,0.5, not '" +
                       text + "'");
             }
             numbers.push_back(*number);
           }
         },
         help)
      ->type_name(shown);
}

void add_augment_options(CLI::App& app, TrainOptions& options) {
  AugmentOptions& augment = options.augment;
  app.add_option_function<std::string>(
         "--augment", [&options](const std::string& text) { read_augment(text, options); },
         "Changes of training images: none, or a list of flip, pad-crop, random-resized-crop; "
         "auto: pad-crop,flip for cifar10, random-resized-crop,flip for imagefolder and csv, none "
         "for the others")
      ->type_name("auto|none|LIST")
      ->default_str("auto");
  add_range(app, "--crop-scale", augment.scale_min, augment.scale_max,
            "Share of the image's area that random-resized-crop takes", "0.08,1");
  add_range(app, "--crop-ratio", augment.ratio_min, augment.ratio_max,
            "Width / height of what random-resized-crop takes", "0.75,1.333");
  add_count(app, "--crop-padding", augment.padding, 1, 64, "Black pixels around, of pad-crop");
  add_count(app, "--val-resize-size", options.val_resize_size, 0, 2 * image_size_max,
            "Validation: the shorter side before the middle is cut out [imagefolder, csv: 8/7 of "
            "--image-size; others: --image-size]");
  add_channel_numbers(app, "--mean", options.mean,
                      "Subtracted from pixels of 0 to 1 [the data set's]", "M,M,M");
  add_channel_numbers(app, "--std", options.deviation,
                      "Divides what is left of pixels [the data set's]", "S,S,S");
}

const std::map<std::string, DatasetKind>& dataset_kinds() {
  static const std::map<std::string, DatasetKind> kinds{
      {"mnist", DatasetKind::Mnist}, {"cifar10", DatasetKind::Cifar10},
      {"stl10", DatasetKind::Stl10}, {"imagefolder", DatasetKind::ImageFolder},
      {"csv", DatasetKind::Csv},     {"synthetic", DatasetKind::Synthetic}};
  return kinds;
}

bool is_published(DatasetKind kind) {
  return kind == DatasetKind::Mnist || kind == DatasetKind::Cifar10 || kind == DatasetKind::Stl10;
}

// What is changed of a crop must be of one that is made.
void check_crops(const AugmentOptions& augment) {
  const AugmentOptions usual;
  const bool resized = augment.random_resized_crop;
  refuse_if(
      !resized && (augment.scale_min != usual.scale_min || augment.scale_max != usual.scale_max),
      "--crop-scale has no meaning with this --augment, which does no random-resized-crop");
  refuse_if(
      !resized && (augment.ratio_min != usual.ratio_min || augment.ratio_max != usual.ratio_max),
      "--crop-ratio has no meaning with this --augment, which does no random-resized-crop");
  refuse_if(!augment.pad_crop && augment.padding != usual.padding,
            "--crop-padding has no meaning with this --augment, which does no pad-crop");
}

void check_synthetic(const TrainOptions& options) {
  if (options.dataset == DatasetKind::Synthetic) return;
  const TrainOptions usual;
  refuse_if(options.synthetic_images != usual.synthetic_images,
            "--synthetic-images has no meaning with this --dataset, which has its own images");
  refuse_if(options.synthetic_classes != usual.synthetic_classes,
            "--synthetic-classes has no meaning with this --dataset, which has its own classes");
}

void check_transforms(const TrainOptions& options) {
  const AugmentOptions& augment = options.augment;
  refuse_if(augment.pad_crop && augment.random_resized_crop,
            "--augment: pad-crop and random-resized-crop contradict each other: give one");
  refuse_if(
      !(augment.scale_min > 0 && augment.scale_min <= augment.scale_max && augment.scale_max <= 1),
      "--crop-scale needs MIN,MAX with 0 < MIN <= MAX <= 1");
  refuse_if(!(augment.ratio_min > 0 && augment.ratio_min <= augment.ratio_max &&
              augment.ratio_max <= 1000),
            "--crop-ratio needs MIN,MAX with 0 < MIN <= MAX <= 1000");
  if (!options.evaluate) check_crops(augment_of(options));  // Else it may be training's command.
  refuse_if(options.mean.empty() != options.deviation.empty() ||
                options.mean.size() != options.deviation.size(),
            "--mean and --std go together, with a number for each channel");
  refuse_if(std::any_of(options.deviation.begin(), options.deviation.end(),
                        [](float value) { return !(value > 0); }),
            "--std needs numbers above 0");
}

}  // namespace

bool lists_files(DatasetKind kind) {
  return kind == DatasetKind::ImageFolder || kind == DatasetKind::Csv;
}

std::string name_of(DatasetKind kind) {
  for (const auto& [name, named] : dataset_kinds()) {
    if (named == kind) return name;
  }
  return "";
}

// What PyTorch's examples do with the data set: the ImageNet example, and the usual one for
// CIFAR-10.
AugmentOptions augment_of(const TrainOptions& options) {
  AugmentOptions augment = options.augment;
  if (!options.augment_by_default) return augment;
  augment.pad_crop = options.dataset == DatasetKind::Cifar10;
  augment.random_resized_crop = lists_files(options.dataset);
  augment.flip = augment.pad_crop || augment.random_resized_crop;
  return augment;
}

std::filesystem::path data_path(const TrainOptions& options) {
  if (!options.data.empty() || options.dataset == DatasetKind::Synthetic) return options.data;
  return "data/" + name_of(options.dataset);
}

void add_data_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Data");
  add_choice(app, "--dataset", options.dataset, dataset_kinds(),
             "mnist, cifar10, stl10, imagefolder, csv or synthetic");
  app.add_option("--data", options.data,
                 "Folder of the data files; csv: the list, \"path,label\" a line [data/<dataset>]")
      ->type_name("PATH");
  app.add_option("--validation-data", options.validation_data,
                 "csv: the list to validate with; imagefolder: its folder [DIR/val]")
      ->type_name("PATH");
  app.add_flag("--verify-data", options.verify_data, "Check the folder's SHA256SUMS first");
  app.add_flag(
      "--download", options.download,
      "mnist, cifar10, stl10: first fetch what is missing in the folder from where the set is "
      "published");
  app.add_option("--download-from", options.download_from,
                 "A mirror for --download: an address that has the set's files below it")
      ->type_name("ADDRESS");
  add_count(app, "--image-size", options.image_size, 0, image_size_max,
            "Resize images to this side; synthetic: make them so [as the data has them; 224 for "
            "imagefolder and csv, 32 for synthetic]");
  add_augment_options(app, options);
  app.add_option_function<std::string>(
         "--on-bad-image",
         [&options](const std::string& word) { options.skip_bad_images = word == "skip"; },
         "An image that cannot be read: fail ends the run; skip takes the next one in training, "
         "leaves it out in validation, and reports both")
      ->check(CLI::IsMember({"fail", "skip"}).description(""))
      ->type_name("fail|skip")
      ->default_str("fail");
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
  refuse_if(
      options.download && !is_published(options.dataset),
      "--download has no meaning with this --dataset: mnist, cifar10 and stl10 are published");
  refuse_if(!options.download && !options.download_from.empty(),
            "--download-from needs --download");
  refuse_if(options.dataset == DatasetKind::Csv && options.verify_data,
            "--verify-data has no meaning with --dataset csv: it checks a folder");
  refuse_if(options.dataset == DatasetKind::Csv && options.data.empty(),
            "--dataset csv needs --data FILE, a list of \"path,label\" lines");
  refuse_if(!options.validation_data.empty() && !lists_files(options.dataset),
            "--validation-data applies to --dataset csv and imagefolder only");
  refuse_if(
      options.dataset == DatasetKind::Csv && options.validation && options.validation_data.empty(),
      "--dataset csv needs a list to validate with: --validation-data FILE, or "
      "--no-validation");
  refuse_if(!options.validation && !options.validation_data.empty(),
            "--no-validation and --validation-data contradict each other");
  refuse_if(!options.validation && options.val_resize_size > 0,
            "--no-validation and --val-resize-size contradict each other");
  check_synthetic(options);
  check_transforms(options);
}

}  // namespace ddprun::trainer
