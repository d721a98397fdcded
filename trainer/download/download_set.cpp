// What is there, what is to come, and in which order files get their names.
#include "trainer/download/download_set.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "command_line/write_all.h"
#include "trainer/data/sets/data_file.h"
#include "trainer/download/http_fetch.h"
#include "trainer/download/tar_members.h"
#include "worker/unique_fd.h"

namespace ddprun::trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* partial_mark = ".partial";
constexpr std::int64_t megabyte = 1'000'000;

double megabytes(std::int64_t bytes) { return static_cast<double>(bytes) / megabyte; }

fs::path partial_of(const fs::path& folder, const std::string& name) {
  return folder / (name + partial_mark);
}

std::int64_t bytes_of(const fs::path& path) {
  std::error_code missing;
  const auto bytes = fs::file_size(path, missing);
  return missing ? 0 : static_cast<std::int64_t>(bytes);
}

// One process at a time appends to a file, until its end, however that comes. The lock is one of
// the file itself, opened to be written: that one NFS has for all hosts, and one of a folder for
// each host alone. A file system without locks has none: then two may fetch the same, and the sums
// tell whether that went well.
class Turn {
 public:
  Turn(const fs::path& partial, const Say& say) : partial_(partial) {
    // Whoever had the turn may have renamed or removed what was opened here. Not for ever: there
    // are file systems on which a file has another number each time.
    for (int tries = 0; tries < 100; ++tries) {
      take(say);
      if (!fd_ || is_there_still()) return;
      fd_.reset();
    }
  }

 private:
  void take(const Say& say) {
    fd_.reset(::open(partial_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!fd_ && errno == ELOOP) {
      throw DataError(fmt::format(
          "--download: {} is a symbolic link, which somebody else may have put there: remove it",
          partial_.string()));
    }
    // Another user's can be waited for at least.
    if (!fd_) fd_.reset(::open(partial_.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd_ || ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    if (!told_) {
      say(fmt::format("Waiting for another process that downloads {}", partial_.string()));
    }
    told_ = true;
    while (::flock(fd_.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  bool is_there_still() const {
    struct stat opened {};
    struct stat named {};
    return ::fstat(fd_.get(), &opened) == 0 && ::stat(partial_.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  }

  const fs::path partial_;
  worker::UniqueFd fd_;
  bool told_ = false;
};

// What differs from the published file; "" when nothing does.
std::string difference_of(const fs::path& path, const PublishedFile& file) {
  if (file.bytes != 0 && bytes_of(path) != file.bytes) {
    return fmt::format("has {} bytes instead of {}", bytes_of(path), file.bytes);
  }
  if (file.md5.empty()) return "";
  const std::string sum = md5_of(path);
  return sum == file.md5 ? "" : fmt::format("has the MD5 {} instead of {}", sum, file.md5);
}

bool is_there(const fs::path& folder, const PublishedFile& file) {
  std::error_code ignored;  // What cannot be looked at cannot be written either, which says why.
  if (!file.alternative.empty() && fs::exists(folder / file.alternative, ignored)) return true;
  const fs::path path = folder / file.name;
  if (!fs::exists(fs::symlink_status(path, ignored))) return false;
  const std::string difference = difference_of(path, file);
  if (difference.empty()) return true;
  throw ForeignFileError(
      fmt::format("--download: {} is there, but {}: it is not the published file. Move it away to "
                  "have that one, or leave out --download to use yours",
                  path.string(), difference));
}

// One for each tenth of what takes long enough to wait for.
class ProgressLines {
 public:
  explicit ProgressLines(const Say& say) : say_(say) {}

  void operator()(std::int64_t done, std::int64_t all) {
    const std::int64_t tenth = 10 * done / all;
    if (all < 10 * megabyte || tenth <= tenth_ || done == all) return;
    if (tenth_ >= 0) say_(fmt::format("{} % of {:.1f} MB", 10 * tenth, megabytes(all)));
    tenth_ = tenth;
  }

 private:
  const Say& say_;
  std::int64_t tenth_ = -1;
};

// A connection that breaks is taken up again as long as it brings something.
void fetch_all(const std::string& address, const fs::path& partial, const Say& say) {
  ProgressLines lines(say);
  while (true) {
    const std::int64_t before = bytes_of(partial);
    const std::string from =
        before == 0 ? "" : fmt::format(", from {:.1f} MB on", megabytes(before));
    say(fmt::format("Downloading {}{}", address, from));
    try {
      return fetch(address, partial,
                   [&](std::int64_t done, std::int64_t all) { lines(done, all); });
    } catch (const FetchError& error) {
      const bool is_here = dynamic_cast<const WriteError*>(&error) != nullptr;
      const std::int64_t now = bytes_of(partial);
      if (now > before && !is_here) continue;
      std::error_code ignored;
      if (now == 0) fs::remove(partial, ignored);
      throw DataError(fmt::format(
          "--download: {}{}{}", error.what(),
          now == 0
              ? ""
              : fmt::format("; {:.1f} MB are kept in {}, and the same command goes on from there",
                            megabytes(now), partial.string()),
          is_here ? "; --data takes a folder where this user may write, with room in it"
                  : ". Is there a network here? Elsewhere the file can be fetched by hand, or "
                    "--download-from ADDRESS names a mirror"));
    }
  }
}

// `partial` with the right content. What an earlier start left may be of another version of the
// file: once all of it is there and the sum is wrong, it is fetched anew, but only once.
void fetch_checked(const PublishedDownload& download, const fs::path& partial, const Say& say) {
  for (bool resumed = bytes_of(partial) > 0;; resumed = false) {
    fetch_all(download.address, partial, say);
    const std::string sum = md5_of(partial);
    if (sum == download.md5) return;
    if (!resumed) {
      fs::remove(partial);
      throw DataError(
          fmt::format("--download: what {} gives has the MD5 {} instead of {}: it is "
                      "another file, or a page in its place",
                      download.address, sum, download.md5));
    }
    say(fmt::format("What was there of {} is of another file: from the start",
                    last_part(download.address)));
    fs::resize_file(partial, 0);  // Not removed: it is the one that is locked.
  }
}

void give_name(const fs::path& partial, const fs::path& path) {
  std::error_code error;
  fs::rename(partial, path, error);
  if (error) {
    throw DataError(fmt::format("--download: cannot rename {} to {}: {}", partial.string(),
                                path.string(), error.message()));
  }
}

// Writes the members that are missing.
class Unpacking {
 public:
  Unpacking(const fs::path& folder, std::vector<PublishedFile> missing)
      : folder_(folder), missing_(std::move(missing)) {}

  TarVisitor visitor() {
    return {.begin = [this](const std::string& name, std::uint64_t) { return begin(name); },
            .part = [this](const char* data, std::size_t count) { write(data, count); },
            .end = [this] { end(); }};
  }
  const std::vector<PublishedFile>& missing() const { return missing_; }

 private:
  bool begin(const std::string& name) {
    for (std::size_t i = 0; i < missing_.size(); ++i) {
      if (missing_[i].name != name) continue;
      current_ = i;
      partial_ = partial_of(folder_, name);
      file_.reset(
          ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644));
      check(file_ ? 0 : errno);
      return true;
    }
    return false;
  }
  void write(const char* data, std::size_t count) {
    check(command_line::write_all(file_.get(), {data, count}).error);
  }
  void end() {
    check(::close(file_.release()) == 0 ? 0 : errno);
    const PublishedFile file = missing_[current_];
    const std::string difference = difference_of(partial_, file);
    if (!difference.empty()) {
      fs::remove(partial_);
      throw DataError(fmt::format("--download: {} of the archive {}", file.name, difference));
    }
    give_name(partial_, folder_ / file.name);
    missing_.erase(missing_.begin() + static_cast<std::ptrdiff_t>(current_));
  }
  void check(int error) const {
    if (error == 0) return;
    throw DataError(
        fmt::format("--download: cannot write {}: {}", partial_.string(), std::strerror(error)));
  }

  const fs::path& folder_;
  std::vector<PublishedFile> missing_;
  std::size_t current_ = 0;
  fs::path partial_;
  worker::UniqueFd file_;
};

void unpack(const fs::path& archive, const fs::path& folder, std::vector<PublishedFile> missing) {
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(archive.c_str(), "rb"), &gzclose);
  if (!file) {
    throw DataError(
        fmt::format("--download: cannot open {}: {}", archive.string(), std::strerror(errno)));
  }
  Unpacking unpacking(folder, std::move(missing));
  const auto source = [&](char* to, std::size_t count) {
    const int read = gzread(file.get(), to, static_cast<unsigned>(count));
    if (read < 0) throw TarError("it cannot be unpacked");
    return static_cast<std::size_t>(read);
  };
  try {
    read_tar(source, unpacking.visitor());
  } catch (const TarError& error) {
    throw DataError(fmt::format("--download: {}: {}", archive.string(), error.what()));
  }
  if (!unpacking.missing().empty()) {
    throw DataError(fmt::format("--download: {} has no {}", archive.string(),
                                unpacking.missing().front().name));
  }
}

std::vector<PublishedFile> missing_of(const PublishedDownload& download, const fs::path& folder) {
  std::vector<PublishedFile> missing;
  for (const PublishedFile& file : download.files) {
    if (!is_there(folder, file)) missing.push_back(file);
  }
  return missing;
}

// How many files came.
std::size_t download_missing(const PublishedDownload& download, const fs::path& folder,
                             const Say& say) {
  if (missing_of(download, folder).empty()) return 0;
  const fs::path partial = partial_of(folder, last_part(download.address));
  const Turn turn(partial, say);
  // Again: whoever had the turn before may have brought them.
  std::vector<PublishedFile> missing = missing_of(download, folder);
  const std::size_t count = missing.size();
  if (count == 0) {
    std::error_code ignored;
    fs::remove(partial, ignored);  // Which was made for the turn.
    return 0;
  }
  fetch_checked(download, partial, say);
  if (download.archive) {
    unpack(partial, folder, std::move(missing));
    fs::remove(partial);
  } else {
    give_name(partial, folder / missing.front().name);
  }
  return count;
}

}  // namespace

void download_set(const PublishedSet& set, const fs::path& folder, const Say& say) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw DataError(
        fmt::format("--download: cannot make the folder {}: {}", folder.string(), error.message()));
  }
  std::size_t count = 0;
  for (const PublishedDownload& download : set.downloads) {
    count += download_missing(download, folder, say);
  }
  if (count > 0)
    say(fmt::format("{} is in {}, with the published sums", set.name, folder.string()));
}

}  // namespace ddprun::trainer
