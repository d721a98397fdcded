// What the files of the option groups share; train_options.cpp and trainer/documents/ include it,
// and nothing else.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/options/train_options.h"
#include "worker/parse_number.h"

namespace ddprun::trainer {

inline constexpr std::int64_t count_max = std::numeric_limits<std::int32_t>::max();

// An option that takes one of some words.
template <typename Enum>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Enum& value,
                        const std::map<std::string, Enum>& words, const std::string& help) {
  std::string names;
  for (const auto& [word, meaning] : words) names += (names.empty() ? "" : "|") + word;
  return app.add_option(name, value, help)
      ->transform(CLI::Validator(
          [words, names](std::string& text) {
            const auto word = words.find(text);
            if (word == words.end()) return "'" + text + "' is none of " + names;
            text = std::to_string(static_cast<int>(word->second));
            return std::string();
          },
          ""))
      ->type_name(names)
      ->default_str(std::find_if(words.begin(), words.end(), [&](const auto& word) {
                      return word.second == value;
                    })->first);
}

// The whole text as a number, or nothing.
template <typename Number>
std::optional<Number> parse_number(const std::string& text) {
  return worker::parse_number<Number>(text.substr(text.starts_with('+') ? 1 : 0));
}

// A check for add_option: a whole number from `min` to `max`.
inline CLI::Validator count_in(std::int64_t min, std::int64_t max) {
  return CLI::Validator(
      [=](const std::string& text) {
        const auto value = parse_number<std::int64_t>(text);
        if (value && *value > max) return "'" + text + "' is more than " + std::to_string(max);
        const bool right = value && *value >= min;
        return right ? std::string()
                     : "'" + text + "' is not a whole number of at least " + std::to_string(min);
      },
      "");
}

template <typename Value>
CLI::Option* add_count(CLI::App& app, const std::string& name, Value& value, std::int64_t min,
                       std::int64_t max, const std::string& help) {
  return app.add_option(name, value, help)->check(count_in(min, max))->capture_default_str();
}

// A check for add_option: a number (no NaN, no infinity) from `min` to `max`; `words` say so.
inline CLI::Validator number_in(double min, double max, const std::string& words) {
  return CLI::Validator(
      [=](const std::string& text) {
        const auto value = parse_number<double>(text);
        const bool right = value && *value >= min && *value <= max;  // Never of NaN.
        return right ? std::string() : "'" + text + "' is not " + words;
      },
      "");
}

inline constexpr double number_max = std::numeric_limits<double>::max();
inline constexpr double number_min = std::numeric_limits<double>::min();  // Above 0.

// The parts between commas; an empty one too, which no option takes.
inline std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

inline std::string join_list(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

inline void refuse_if(bool wrong, const char* message) {
  if (wrong) throw UsageError(message);
}

// Every option of the command line.
void add_all_options(CLI::App& app, TrainOptions& options);

// One pair a group: adds its options to the command line, and finds the contradictions among
// them and with the groups above it. The second ones throw UsageError.
void add_data_options(CLI::App& app, TrainOptions& options);
void add_model_options(CLI::App& app, TrainOptions& options);
void add_training_options(CLI::App& app, TrainOptions& options);
void add_optimizer_options(CLI::App& app, TrainOptions& options);  // Of the training group.
void add_output_options(CLI::App& app, TrainOptions& options);
void add_checkpoint_options(CLI::App& app, TrainOptions& options);
void add_device_options(CLI::App& app, TrainOptions& options);
void add_launch_options(CLI::App& app, TrainOptions& options);
void check_data_options(const TrainOptions& options);
void check_model_options(const TrainOptions& options);
void check_training_options(const TrainOptions& options);
void check_optimizer_options(const TrainOptions& options);
void check_output_options(const TrainOptions& options);
void check_checkpoint_options(const TrainOptions& options);
void check_device_options(const TrainOptions& options);

}  // namespace ddprun::trainer
