// So `ddprun plot a.jsonl b.jsonl` lays two runs over each other, and an event log or another
// rank's metrics joins the run before it.
#include "plot/run_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

namespace ddprun::plot {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t runs_max = 64;
constexpr std::string_view rank_mark = "{rank}";
constexpr std::int64_t ranks_looked_for = 65'536;

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw RunFilesError("cannot read " + path + ": " + reason);
}

std::string content_of_run_file(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::is_regular_file(status)) {
    fail(path, fs::exists(status)                          ? "it is no regular file"
               : status.type() == fs::file_type::not_found ? "there is no such file or folder"
                                                           : error.message());
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(path, std::strerror(errno));
  // Through a stream, which notes an error where the buffer's iterators would throw.
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || text.bad()) fail(path, "an error came while it was read");
  return std::move(text).str();
}

// The files that a word of the command line names: those of a folder, and of "m_{rank}.jsonl", as
// it was given to --metrics, the files of all ranks.
std::vector<std::string> files_of(const std::string& word) {
  std::vector<std::string> files;
  std::error_code error;
  if (names_all_ranks(word) && !fs::exists(word, error)) {
    // Ranks have no gaps, but a file may have been lost.
    for (std::int64_t rank = 0, missing = 0; rank < ranks_looked_for && missing < 64; ++rank) {
      std::string path = name_of_rank(word, rank);
      missing = fs::exists(path, error) ? 0 : missing + 1;
      if (error) fail(path, error.message());
      if (missing == 0) files.push_back(path);
    }
    if (files.empty()) throw RunFilesError("no rank has a file " + word);
    return files;
  }
  if (!fs::is_directory(word, error)) return {word};
  std::error_code unknown;
  for (fs::directory_iterator entry(word, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string ending = entry->path().extension();
    if (entry->path().filename() == "manifest.json") continue;  // Of a folder of checkpoints.
    if (entry->is_regular_file(unknown) && (ending == ".jsonl" || ending == ".json")) {
      files.push_back(entry->path());
    }
  }
  if (error) fail(word, error.message());
  std::sort(files.begin(), files.end());
  if (files.empty()) throw RunFilesError(word + " holds no file that ends in .jsonl or .json");
  return files;
}

void add_file(RunRecords& run, const std::string& file, const std::string& text, bool named) {
  if (add_records(run, text, file) > 0) return;
  const std::string problem = text.empty() ? "is empty" : "has no line of either format";
  // A folder may hold other files, and a run that has just begun an empty one.
  run.notes.push_back(file + " " + problem + "; left out");
  if (named && !text.empty()) {
    throw RunFilesError(file +
                        " has no line of train --metrics or ddprun --event-log; name files "
                        "that those have written");
  }
}

// Of a file that stands for itself: whether it is a part of the run named before it.
bool joins(const std::string& text) {
  const auto rank = rank_of_metrics(text);
  return !text.empty() && (!rank || *rank > 0);
}

}  // namespace

bool names_all_ranks(const std::string& name) { return name.find(rank_mark) != name.npos; }

std::string name_of_rank(std::string name, std::int64_t rank) {
  for (std::size_t at = 0; (at = name.find(rank_mark, at)) != name.npos;) {
    name.replace(at, rank_mark.size(), std::to_string(rank));
  }
  return name;
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
      throw RunFilesError(fmt::format("{} runs are too many for one picture; name at most {}",
                                      runs.size(), runs_max));
    }
  }
  return runs;
}

}  // namespace ddprun::plot
