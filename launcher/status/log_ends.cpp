// A bounded part from the end: what lies further back is read where the file lies.
#include "launcher/status/log_ends.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "launcher/output/log.h"
#include "launcher/output/tail.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

constexpr off_t all_files_bytes_max = 192 << 10;  // Of a node, in equal parts.
constexpr off_t file_bytes_least = 4 << 10;
constexpr std::size_t cut_line_bytes_max = 4 << 10;

struct FileEnd {
  std::vector<std::string> lines;
  bool is_whole = true;  // The file has no more.
  bool is_there = false;
};

// Where lines begin in the end of a file, of which the first may be the end of one. A line that is
// redrawn may be longer than all that is read, and its last state is whole. Of another one that is,
// the end is shown.
std::size_t first_begin(std::string_view text) {
  const std::size_t end = text.find_first_of("\r\n");
  const std::size_t length = text.substr(std::min(end, text.size())).starts_with("\r\n") ? 2 : 1;
  if (end != text.npos && end + length < text.size()) return end + length;
  return text.size() - std::min(text.size(), cut_line_bytes_max);
}

FileEnd end_of_file(const std::string& path, off_t bytes_max, int lines_max) {
  FileEnd end;
  // Without waiting for a writer, should somebody have put a FIFO there.
  const rendezvous::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  if (!fd || ::fstat(fd.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return end;
  end.is_there = true;
  const off_t from = std::max<off_t>(0, facts.st_size - bytes_max);
  std::string text(static_cast<std::size_t>(facts.st_size - from), '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), from);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (from > 0) text.erase(0, first_begin(text));
  end.is_whole = from == 0 && full_logs(path).empty();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t stop = std::min(text.find('\n', at), text.size());
    end.lines.emplace_back(visible_part(std::string_view(text).substr(at, stop - at)));
    at = stop + 1;
  }
  const auto wanted = static_cast<std::size_t>(std::max(lines_max, 0));
  if (wanted > 0 && end.lines.size() >= wanted) {
    end.lines.erase(end.lines.begin(), end.lines.end() - static_cast<std::ptrdiff_t>(wanted));
    end.is_whole = true;  // As much as was asked for.
  }
  return end;
}

}  // namespace

std::vector<std::string> log_lines(const JobSnapshot& own, std::optional<int> rank, int lines) {
  std::vector<const RankSnapshot*> wanted;
  off_t files = 0;
  for (const RankSnapshot& each : own.ranks) {
    if (rank && each.rank != *rank) continue;
    wanted.push_back(&each);
    files += (each.stdout_file.empty() ? 0 : 1) + (each.stderr_file.empty() ? 0 : 1);
  }
  const off_t share = std::max(file_bytes_least, all_files_bytes_max / std::max<off_t>(files, 1));
  std::vector<std::string> shown;
  for (const RankSnapshot* each : wanted) {
    if (each->stdout_file.empty() && each->stderr_file.empty()) {
      shown.push_back(fmt::format(
          "  rank {} writes no log files: --tee 3 or --redirects 3 makes them", each->rank));
    }
    for (const std::string& path : {each->stdout_file, each->stderr_file}) {
      if (path.empty()) continue;
      const FileEnd end = end_of_file(path, share, lines);
      if (!end.is_there) shown.push_back(fmt::format("  {} cannot be read", path));
      if (end.is_there && !end.is_whole) {
        shown.push_back(fmt::format("  ... the rest of {} is there", path));
      }
      for (const std::string& line : end.lines) {
        shown.push_back(fmt::format("[{}]: {}", each->rank, line));
      }
    }
  }
  return shown;
}

}  // namespace ddprun::launcher
