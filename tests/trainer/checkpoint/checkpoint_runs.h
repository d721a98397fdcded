// Runs of the program `train` that write checkpoints, and what is in these.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/process.h"
#include "tests/testing/words.h"
#include "tests/trainer/data/jpeg_writer.h"
#include "tests/trainer/train_program.h"

namespace ddprun::trainer {

using testing::ProcessResult;
using testing::run;

inline constexpr std::chrono::seconds run_limit{120};

using Arguments = std::vector<std::string>;

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Of a small network on images of 20 pixels, and where it writes.
inline Arguments run_in(const ScratchFolder& folder, const Arguments& data) {
  return Arguments{DDPRUN_TRAIN} + data +
         testing::words_of(
             "--image-size 20 --model convnet --lr 0.01 --print-freq 1 --workers 0 --device cpu") +
         Arguments{"--metrics", folder / "metrics", "--checkpoint-dir", folder / "checkpoints"};
}

// 100 images, 16 a step over all workers, 7 steps an epoch.
inline Arguments small_run(const ScratchFolder& folder, const Arguments& more) {
  return run_in(folder, {"--dataset", "synthetic", "--synthetic-images", "100",
                         "--synthetic-classes", "10"}) +
         more;
}

// On images of files; 4 a step.
inline Arguments folder_run(const ScratchFolder& folder, const std::filesystem::path& data,
                            const Arguments& more) {
  return run_in(folder, {"--dataset", "imagefolder", "--data", data, "--batch-size", "4"}) + more;
}

// The same 4 over all workers.
inline Arguments shared_folder_run(const ScratchFolder& folder, const std::filesystem::path& data,
                                   const Arguments& more) {
  return run_in(folder, {"--dataset", "imagefolder", "--data", data, "--global-batch-size", "4"}) +
         more;
}

// All the same.
inline void write_images(const std::filesystem::path& folder, int count) {
  std::filesystem::create_directories(folder);
  for (int image = 0; image < count; ++image) {
    write_bytes(folder / (std::to_string(image) + ".jpg"), jpeg({.width = 30, .height = 30}));
  }
}

inline ProcessResult run_with(int workers, const Arguments& train) {
  const std::map<std::string, std::string> one_thread{{"OMP_NUM_THREADS", "1"}};
  const Arguments launch{DDPRUN_LAUNCHER, "--standalone", "--nproc-per-node",
                         std::to_string(workers)};
  return run(workers == 1 ? train : launch + train, run_limit, one_thread);
}

// As a job whose first attempt failed before it had begun.
inline ProcessResult run_restarted(const Arguments& train) {
  const Arguments launch{DDPRUN_LAUNCHER,
                         "--standalone",
                         "--max-restarts",
                         "1",
                         "--restart-backoff",
                         "0",
                         "/bin/sh",
                         "-c",
                         "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; exec \"$@\"",
                         "sh"};
  return run(launch + train, run_limit, {{"OMP_NUM_THREADS", "1"}});
}

inline std::string checkpoint_of_step(const ScratchFolder& folder, int step) {
  return folder / ("checkpoints/epoch_0000_step_000000" + std::to_string(step) + ".safetensors");
}

// The header of a checkpoint, and the bytes behind it.
inline std::pair<Json, std::string> parts_of(const std::filesystem::path& path) {
  const std::string file = content_of(path);
  std::uint64_t header_bytes = 0;
  REQUIRE(file.size() > sizeof header_bytes);
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  return {Json::parse(file.substr(sizeof header_bytes, header_bytes)),
          file.substr(sizeof header_bytes + header_bytes)};
}

// Its tensors, names and bytes, without the metadata.
inline std::string tensors_of(const std::filesystem::path& path) {
  auto [header, bytes] = parts_of(path);
  header.erase("__metadata__");
  return header.dump() + bytes;
}

inline Json metadata_of(const std::filesystem::path& path) {
  return parts_of(path).first["__metadata__"];
}

inline std::vector<std::string> files_ending_with(const std::filesystem::path& folder,
                                                  const std::string& ending) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(ending)) names.push_back(name);
  }
  return names;
}

}  // namespace ddprun::trainer
