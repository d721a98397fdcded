// The command line; which files are which run is plot/run_files.cpp's, and the page plot/'s.
#include "launcher/plot_command.h"

#include <cstdio>
#include <stdexcept>

#include "launcher/options/launch_options.h"
#include "launcher/output/whole_file.h"
#include "plot/report_page.h"
#include "plot/run_files.h"
#include "plot/run_records.h"

namespace ddprun::launcher {
namespace {

struct PlotArguments {
  std::string output = "report.html";
  std::vector<std::string> runs;
};

UsageExit plot_error(const std::string& problem) {
  return UsageExit(2, "ddprun plot: error: " + problem + "\nddprun plot --help tells more.");
}

PlotArguments parse_plot(const std::vector<std::string>& arguments) {
  PlotArguments given;
  bool only_runs = false;  // After "--": a file may have a name that begins with a dash.
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
  if (given.output == "-")
    throw plot_error(std::string("--output needs a file; ") + dash_is_no_file);
  return given;
}

// What was named wrong is the user's to mend, with status 2; a page that cannot be written is not.
std::vector<plot::RunRecords> read(const std::vector<std::string>& words) {
  try {
    return plot::read_runs(words);
  } catch (const plot::RunFilesError& error) {
    throw plot_error(error.what());
  }
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
  const std::vector<plot::RunRecords> runs = read(given.runs);
  // Whole: of a run that goes on, a browser may be loading the page of before.
  const std::string problem = write_whole_file(given.output, plot::report_page(runs));
  if (!problem.empty()) {
    throw std::runtime_error("cannot write " + given.output + ": " + problem);
  }
  for (const plot::RunRecords& run : runs) {
    for (const std::string& note : run.notes) std::fprintf(stderr, "%s\n", note.c_str());
  }
  std::printf("%s\n", given.output.c_str());
  return 0;
}

}  // namespace ddprun::launcher
