// See checkpoint_folder.h.
#include "trainer/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "trainer/checkpoint.h"

namespace ddprun::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view ending = ".safetensors";
constexpr std::string_view epoch_mark = "epoch_";
constexpr std::string_view step_mark = "_step_";

std::optional<std::int64_t> parse_digits(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text[0] == '-' || error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::string CheckpointName::file_name() const {
  return fmt::format("{}{:04}{}{:07}{}", epoch_mark, epoch, step_mark, step, ending);
}

std::optional<CheckpointName> parse_checkpoint_name(const std::string& file_name) {
  std::string_view text = file_name;
  if (!text.starts_with(epoch_mark) || !text.ends_with(ending)) return std::nullopt;
  text.remove_prefix(epoch_mark.size());
  text.remove_suffix(ending.size());
  const std::size_t mark = text.find(step_mark);
  if (mark == std::string_view::npos) return std::nullopt;
  const auto epoch = parse_digits(text.substr(0, mark));
  const auto step = parse_digits(text.substr(mark + step_mark.size()));
  if (!epoch || !step) return std::nullopt;
  return CheckpointName{*epoch, *step};
}

CheckpointFolder::CheckpointFolder(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!fs::is_directory(folder_)) {
    throw CheckpointError(fmt::format("--checkpoint-dir: cannot make the folder {}: {}",
                                      folder_.string(), error ? error.message() : "it is a file"));
  }
  const std::string probe = (folder_ / fmt::format("writable.{}.partial", ::getpid())).string();
  const int fd = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw CheckpointError(fmt::format("--checkpoint-dir: cannot write to {}: {}", folder_.string(),
                                      std::strerror(errno)));
  }
  ::close(fd);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().extension() == ".partial") fs::remove(entry.path(), error);
  }
}

std::vector<CheckpointName> CheckpointFolder::list() const {
  std::vector<CheckpointName> names;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (const auto name = parse_checkpoint_name(entry.path().filename().string())) {
      names.push_back(*name);
    }
  }
  std::sort(names.begin(), names.end(), [](const CheckpointName& a, const CheckpointName& b) {
    return std::pair(a.step, a.epoch) < std::pair(b.step, b.epoch);
  });
  return names;
}

fs::path CheckpointFolder::path_of(const CheckpointName& name) const {
  return folder_ / name.file_name();
}

fs::path CheckpointFolder::save(const CheckpointName& name, const Safetensors& contents) {
  const fs::path path = path_of(name);
  write_whole(path, contents);
  std::vector<CheckpointName> names = list();
  // Only those up to this one: a job that went back to an older checkpoint keeps the later ones.
  std::erase_if(names, [&](const CheckpointName& other) { return other.step > name.step; });
  for (std::size_t i = 0; i + checkpoints_kept < names.size(); ++i) {
    std::error_code ignored;  // A file that stays costs space only.
    fs::remove(path_of(names[i]), ignored);
  }
  return path;
}

void CheckpointFolder::save_best(const Safetensors& contents) {
  write_whole(folder_ / "best.safetensors", contents);
}

fs::path CheckpointFolder::set_aside(const CheckpointName& name) {
  const fs::path aside = path_of(name).string() + ".corrupt";
  std::error_code error;
  fs::rename(path_of(name), aside, error);
  if (error) {
    throw CheckpointError(
        fmt::format("cannot rename the damaged {}: {}", path_of(name).string(), error.message()));
  }
  return aside;
}

// A reader, or a machine that lost power, sees the old file or the new one: the content is on the
// disk before the name changes, and the name before this returns.
void CheckpointFolder::write_whole(const fs::path& path, const Safetensors& contents) {
  const fs::path partial = path.string() + ".partial";
  std::error_code error;
  try {
    write_safetensors(partial, contents);
  } catch (const SafetensorsError& failure) {
    fs::remove(partial, error);
    throw CheckpointError(fmt::format("cannot save a checkpoint: {}", failure.what()));
  }
  fs::rename(partial, path, error);
  if (error) {
    throw CheckpointError(fmt::format("cannot rename {} to {}: {}", partial.string(), path.string(),
                                      error.message()));
  }
  sync_folder();
}

void CheckpointFolder::sync_folder() const {
  const int fd = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // Some network file systems do not open folders; nothing better can be done.
  ::fsync(fd);
  ::close(fd);
}

}  // namespace ddprun::trainer
