// What the files of the option groups share; only they and options.cpp include it.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "trainer/options.h"

namespace ddprun::trainer {

inline constexpr std::int64_t count_max = std::numeric_limits<std::int32_t>::max();

// An option that takes one of some words.
template <typename Enum>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Enum& value,
                        const std::map<std::string, Enum>& words, const std::string& help) {
  std::string names;
  for (const auto& [word, meaning] : words) names += (names.empty() ? "" : "|") + word;
  return app.add_option(name, value, help)
      ->transform(CLI::CheckedTransformer(words).description(""))
      ->type_name(names)
      ->default_str(std::find_if(words.begin(), words.end(), [&](const auto& word) {
                      return word.second == value;
                    })->first);
}

template <typename Value>
CLI::Option* add_count(CLI::App& app, const std::string& name, Value& value, std::int64_t min,
                       std::int64_t max, const std::string& help) {
  return app.add_option(name, value, help)
      ->check(CLI::Range(min, max).description(""))
      ->capture_default_str();
}

inline void refuse_if(bool wrong, const char* message) {
  if (wrong) throw UsageError(message);
}

// One pair a group: adds its options to the command line, and finds the contradictions among
// them and with the groups above it. The second ones throw UsageError.
void add_data_options(CLI::App& app, TrainOptions& options);
void add_model_options(CLI::App& app, TrainOptions& options);
void add_training_options(CLI::App& app, TrainOptions& options);
void add_output_options(CLI::App& app, TrainOptions& options);
void add_checkpoint_options(CLI::App& app, TrainOptions& options);
void add_device_options(CLI::App& app, TrainOptions& options);
void check_data_options(const TrainOptions& options);
void check_model_options(const TrainOptions& options);
void check_training_options(const TrainOptions& options);
void check_output_options(const TrainOptions& options);
void check_checkpoint_options(const TrainOptions& options);
void check_device_options(const TrainOptions& options);

}  // namespace ddprun::trainer
