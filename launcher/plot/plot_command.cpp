// Which files are one run: a folder is, with all that it holds; a file is, and what belongs to it
// is named after it. So `ddprun plot a.jsonl b.jsonl` lays two runs over each other, and an event
// log or another rank's metrics joins the run before it.
#include "launcher/plot/plot_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "launcher/options/launch_options.h"
#include "launcher/output/whole_file.h"
#include "launcher/plot/report_page.h"
#include "launcher/plot/run_records.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t runs_max = 64;
constexpr std::string_view rank_mark = "{rank}";
constexpr std::int64_t ranks_looked_for = 65'536;

struct PlotArguments {
  std::string output = "report.html";
  std::vector<std::string> runs;
};

UsageExit plot_error(const std::string& problem) {
  return UsageExit(2, "ddprun plot: error: " + problem + "\nddprun plot --help tells more.");
}

PlotArguments parse_plot(const std::vector<std::string>& arguments) {
  PlotArguments given;
  bool only_runs = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (only_runs || word.empty() || word[0] != '-' || word == "-") {
      given.runs.push_back(word);
    } else if (word == "--") {
      only_runs = true;
    } else if (word == "-h" || word == "--help") {
      throw UsageExit(0, plot_help());
    } else if (word == "-o" || word == "--output") {
      if (++i == arguments.size()) throw plot_error(word + " needs a file");
      given.output = arguments[i];
    } else if (word.starts_with("--output=")) {
      given.output = word.substr(9);
    } else {
      throw plot_error("unknown option " + word + "; there are --output FILE and --help");
    }
  }
  if (given.runs.empty()) {
    throw plot_error("name the files of a run, as --metrics and --event-log have written them");
  }
  if (given.output.empty()) throw plot_error("--output needs a file");
  return given;
}

std::string content_of_run_file(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    throw plot_error(
        "cannot read " + path + ": " +
        (fs::exists(path, error) ? "it is no regular file" : "there is no such file or folder"));
  }
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in && !in.eof()) throw plot_error("cannot read " + path);
  return text;
}

// The files that a word of the command line names: those of a folder, and of "m_{rank}.jsonl", as
// it was given to --metrics, the files of all ranks.
std::vector<std::string> files_of(const std::string& word) {
  std::vector<std::string> files;
  const std::size_t mark = word.find(rank_mark);
  if (mark != std::string::npos && !fs::exists(word)) {
    // Ranks have no gaps, but a file may have been lost.
    for (std::int64_t rank = 0, missing = 0; rank < ranks_looked_for && missing < 64; ++rank) {
      std::string path = word;
      path.replace(mark, rank_mark.size(), std::to_string(rank));
      missing = fs::exists(path) ? 0 : missing + 1;
      if (missing == 0) files.push_back(path);
    }
    if (files.empty()) throw plot_error("no rank has a file " + word);
    return files;
  }
  if (!fs::is_directory(word)) return {word};
  for (const auto& entry : fs::directory_iterator(word)) {
    const std::string end = entry.path().extension();
    if (entry.is_regular_file() && (end == ".jsonl" || end == ".json")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) throw plot_error(word + " holds no file that ends in .jsonl or .json");
  return files;
}

void add_file(RunRecords& run, const std::string& file, const std::string& text, bool named) {
  if (add_records(run, text, file) > 0) return;
  const std::string problem = text.empty() ? "is empty" : "has no line of either format";
  // A folder may hold other files, and a run that has just begun an empty one.
  run.notes.push_back(file + " " + problem + "; left out");
  if (named && !text.empty()) {
    throw plot_error(file +
                     " has no line of train --metrics or ddprun --event-log; name files "
                     "that those have written");
  }
}

// Of a file that stands for itself: whether it is a part of the run named before it.
bool joins(const std::string& text) {
  const auto rank = rank_of_metrics(text);
  return !text.empty() && (!rank || *rank > 0);
}

std::vector<RunRecords> read_runs(const std::vector<std::string>& words) {
  std::vector<RunRecords> runs;
  for (const std::string& word : words) {
    const std::vector<std::string> files = files_of(word);
    const bool one_file = files.size() == 1 && files.front() == word;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::string text = content_of_run_file(files[i]);
      const bool part = i > 0 || (one_file && joins(text));
      if (!part || runs.empty()) {
        runs.emplace_back();
        runs.back().name =
            word.size() > 1 && word.ends_with('/') ? word.substr(0, word.size() - 1) : word;
      }
      add_file(runs.back(), files[i], text, one_file);
    }
    if (runs.size() > runs_max) {
      throw plot_error(fmt::format("{} runs are too many for one picture; name at most {}",
                                   runs.size(), runs_max));
    }
  }
  return runs;
}

}  // namespace

std::string plot_help() {
  return R"(usage: ddprun plot [-o FILE] RUN...

Writes one page about a run, or about several laid over each other, after it or
while it goes on: loss, accuracy, learning rate, images per second, where each
rank's time went, attempts and failures. The page needs no other file, and
reads in light and in dark.

  RUN   a file that `train --metrics` or `ddprun --event-log` has written; a
        folder of such files (.jsonl, .json), which are one run; or the name
        that --metrics was given, with {rank} in it
  -o, --output FILE   report.html

A file is a run of its own, but for an event log, or the metrics of a rank
above 0: it belongs to the run before it. A line that is broken, or only half
written, is left out, and the page says so.

  ddprun --event-log run1/events.jsonl train --metrics run1/metrics.jsonl ...
  ddprun plot run1
  ddprun plot -o both.html run1 run2

To run a program that is called plot: ddprun -- plot)";
}

int run_plot(const std::vector<std::string>& arguments) {
  const PlotArguments given = parse_plot(arguments);
  const std::vector<RunRecords> runs = read_runs(given.runs);
  const std::string problem = write_whole_file(given.output, report_page(runs));
  if (!problem.empty()) {
    throw std::runtime_error("cannot write " + given.output + ": " + problem);
  }
  for (const RunRecords& run : runs) {
    for (const std::string& note : run.notes) std::fprintf(stderr, "%s\n", note.c_str());
  }
  std::printf("%s\n", given.output.c_str());
  return 0;
}

}  // namespace ddprun::launcher
