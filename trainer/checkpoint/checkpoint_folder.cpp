// The order of writes, renames and removals, such that a stop at any line leaves a good checkpoint.
#include "trainer/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "command_line/write_all.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/formats/whole_file.h"
#include "worker/parse_number.h"
#include "worker/unique_fd.h"

namespace ddprun::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view ending = ".safetensors";
constexpr std::string_view epoch_mark = "epoch_";
constexpr std::string_view step_mark = "_step_";
constexpr const char* best_name = "best.safetensors";
constexpr const char* last_name = "last.safetensors";
constexpr const char* manifest_name = "manifest.json";
constexpr const char* probe_name = "writable";
constexpr std::string_view partial_ending = ".partial";
constexpr std::string_view corrupt_ending = ".corrupt";

std::optional<std::int64_t> parse_digits(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : worker::parse_number<std::int64_t>(text);
}

// "name" of "name.ending"; "" for another ending.
std::string without_ending(const fs::path& path, std::string_view wanted) {
  return path.extension() == wanted ? path.stem().string() : "";
}

// Where others may write they can guess the name: a link there is not followed.
worker::UniqueFd open_partial(const std::string& name) {
  return worker::UniqueFd(
      ::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644));
}

// What this class writes. Other programs leave *.partial files too, and a user may name any folder.
bool is_own_partial(const fs::path& path) {
  const std::string name = without_ending(path.filename(), partial_ending);
  return name == best_name || name == last_name || name == manifest_name || name == probe_name ||
         parse_checkpoint_name(name).has_value();
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

CheckpointFolder::CheckpointFolder(fs::path folder, std::size_t kept, Access access,
                                   std::chrono::milliseconds lock_wait)
    : folder_(std::move(folder)), kept_(std::max<std::size_t>(kept, 2)), access_(access) {
  std::error_code error;
  if (access_ == Access::ReadOnly) {
    if (!fs::is_directory(folder_, error)) {
      throw UnusableFolderError(fmt::format("--checkpoint-dir: {} is no folder{}", folder_.string(),
                                            error ? ": " + error.message() : ""));
    }
    const fs::directory_iterator tried(folder_, error);
    if (error) {
      throw UnusableFolderError(
          fmt::format("--checkpoint-dir: cannot read {}: {}", folder_.string(), error.message()));
    }
    read_manifest();
    return;
  }
  if (access_ == Access::SaveLater) {
    take_if_possible();
  } else {
    take(lock_wait);
  }
}

// Who has the state in memory trains on where the folder is full or away, as it would have done in
// the attempt before.
void CheckpointFolder::take_if_possible() {
  try {
    make_folder();
    try_to_take({}, {});
  } catch (const CheckpointError&) {  // take() tells it, if it still is so.
  } catch (const fs::filesystem_error&) {
  }
}

void CheckpointFolder::make_folder() const {
  std::error_code error, ignored;
  fs::create_directories(folder_, error);
  if (fs::is_directory(folder_, ignored)) return;
  throw UnusableFolderError(fmt::format("--checkpoint-dir: cannot make the folder {}: {}",
                                        folder_.string(),
                                        error ? error.message() : "it is a file"));
}

std::string CheckpointFolder::gone_text() const {
  return fmt::format("{} was removed or renamed while this run saved in it", folder_.string());
}

void CheckpointFolder::throw_taken() const {
  throw CheckpointError(fmt::format(
      "--checkpoint-dir: {}another process on this host saves checkpoints in {}: wait until it "
      "has ended, or give another folder",
      lost_ ? gone_text() + ", and " : "", folder_.string()));
}

// Files go by the folder's name, and so would end in whatever has it now.
bool CheckpointFolder::take(std::chrono::milliseconds lock_wait,
                            const std::function<bool()>& give_up) {
  if (access_ == Access::ReadOnly || is_held()) return false;
  if (lock_) {
    lost_ = std::exchange(manifest_, {});
    lock_.reset();
  }
  make_folder();
  // Who holds what has replaced it is no attempt of before, which would soon be over.
  if (!try_to_take(lost_ ? std::chrono::milliseconds{0} : lock_wait, give_up)) throw_taken();
  if (lost_) warnings_.push_back(gone_text() + ": saving goes on in the one that has its name now");
  lost_.reset();
  return true;
}

bool CheckpointFolder::try_to_take(std::chrono::milliseconds lock_wait,
                                   const std::function<bool()>& give_up) {
  lock_.emplace(folder_, lock_wait, give_up);
  if (!lock_->held() || !is_held()) {  // Or it has gone during the wait.
    lock_.reset();
    return false;
  }
  try {
    read_manifest();
    if (lost_) refuse_others();
    make_ready();
  } catch (...) {
    lock_.reset();  // It counts as taken only when it is ready.
    throw;
  }
  return true;
}

void CheckpointFolder::make_ready() {
  // Found out now rather than at the first save, which may be hours away.
  const std::string probe = (folder_ / probe_name).string() + std::string(partial_ending);
  if (!open_partial(probe)) {
    throw UnusableFolderError(fmt::format("--checkpoint-dir: cannot write to {}: {}",
                                          folder_.string(), std::strerror(errno)));
  }
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (is_own_partial(entry.path())) fs::remove(entry.path(), ignored);
  }
}

// What this run knows may be there: a copy, or a file system that was mounted anew.
void CheckpointFolder::refuse_others() const {
  const auto refuse_other = [this](const std::string& file) {
    const auto before = lost_->find(file), now = manifest_.find(file);
    if (before != lost_->end() && now != manifest_.end() &&
        before->second.checksum == now->second.checksum) {
      return;
    }
    throw CheckpointError(fmt::format(
        "--checkpoint-dir: {}, and {} in the folder that has its name now is not of this run, "
        "which would overwrite it: move that folder away, or give another one",
        gone_text(), file));
  };
  for (const CheckpointName& name : list()) refuse_other(name.file_name());
  if (has_best()) refuse_other(best_name);
}

bool CheckpointFolder::has_best() const {
  std::error_code ignored;
  return fs::symlink_status(folder_ / best_name, ignored).type() != fs::file_type::not_found;
}

Safetensors CheckpointFolder::read_best() const { return read_safetensors(folder_ / best_name); }

bool CheckpointFolder::lists(const std::string& checksum) const {
  return std::any_of(manifest_.begin(), manifest_.end(), [&](const auto& entry) {
    return entry.second.checksum == checksum && parse_checkpoint_name(entry.first).has_value();
  });
}

bool CheckpointFolder::has_damaged() const {
  return std::any_of(fs::directory_iterator(folder_), fs::directory_iterator(), [](const auto& e) {
    return parse_checkpoint_name(without_ending(e.path().filename(), corrupt_ending)).has_value();
  });
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

Safetensors CheckpointFolder::read(const CheckpointName& name) const {
  Safetensors contents = read_safetensors(path_of(name));
  const auto listed = manifest_.find(name.file_name());
  const auto checksum = contents.metadata.find(checksum_key);
  if (listed != manifest_.end() &&
      (checksum == contents.metadata.end() || checksum->second != listed->second.checksum)) {
    throw UnlistedCheckpointError(fmt::format(
        "{} is not the file that {} lists: its checksum is {}, expected {}", path_of(name).string(),
        manifest_name, checksum == contents.metadata.end() ? "missing" : checksum->second,
        listed->second.checksum));
  }
  return contents;
}

fs::path CheckpointFolder::save(const CheckpointName& name, const Safetensors& contents) {
  const fs::path path = write_whole(name.file_name(), contents);
  std::vector<CheckpointName> names = list();
  // Only those up to this one: a job that went back to an older checkpoint keeps the later ones.
  std::erase_if(names, [&](const CheckpointName& other) { return other.step > name.step; });
  const auto same_step = std::stable_partition(
      names.begin(), names.end(),
      [&](const CheckpointName& other) { return other == name || other.step < name.step; });
  const auto steps = static_cast<std::size_t>(same_step - names.begin());
  names.erase(names.begin() + static_cast<std::ptrdiff_t>(steps - std::min(steps, kept_)),
              same_step);
  // Old files go last: until the new one, the manifest and the folder are synced, they are what a
  // restart would need.
  for (const CheckpointName& old : names) manifest_.erase(old.file_name());
  write_manifest();
  point_last_to(name.file_name());
  sync_folder();
  for (const CheckpointName& old : names) {
    std::error_code ignored;  // A file that stays costs space only.
    fs::remove(path_of(old), ignored);
  }
  return path;
}

fs::path CheckpointFolder::save_best(const Safetensors& contents) {
  const fs::path path = write_whole(best_name, contents);
  write_manifest();
  sync_folder();
  return path;
}

fs::path CheckpointFolder::set_aside(const CheckpointName& name) {
  if (access_ == Access::ReadOnly) return path_of(name);
  const fs::path aside = path_of(name).string() + std::string(corrupt_ending);
  std::error_code error;
  fs::rename(path_of(name), aside, error);
  if (error) {
    throw CheckpointError(
        fmt::format("cannot rename the damaged {}: {}", path_of(name).string(), error.message()));
  }
  manifest_.erase(name.file_name());
  return aside;
}

fs::path CheckpointFolder::take_back(const CheckpointName& name) {
  // What lies there may be another's.
  if (lost_ || (lock_ && !is_held())) throw CheckpointError("--checkpoint-dir: " + gone_text());
  if (!lock_) throw_taken();
  const fs::path aside = set_aside(name);
  write_manifest();
  const std::vector<CheckpointName> left = list();
  std::error_code ignored;
  if (left.empty()) {
    fs::remove(folder_ / last_name, ignored);
  } else {
    point_last_to(left.back().file_name());
  }
  sync_folder();
  return aside;
}

// A reader, or a machine that lost power, sees the old file or the new one: the content is on the
// disk before the name changes.
fs::path CheckpointFolder::write_whole(const std::string& file_name, const Safetensors& contents) {
  const fs::path path = folder_ / file_name;
  const fs::path partial = path.string() + ".partial";
  std::error_code error;
  WrittenFile written;
  try {
    written = write_safetensors(partial, contents);
  } catch (const SafetensorsError& failure) {
    fs::remove(partial, error);
    throw CheckpointError(fmt::format("cannot save a checkpoint: {}", failure.what()));
  }
  // A large one takes its time. Nothing of what has the name now is this run's to change.
  if (!is_held()) throw CheckpointError("cannot save a checkpoint: " + gone_text());
  // A process that ends between the two would leave a file that the manifest knows as another.
  if (manifest_.erase(file_name) > 0) write_manifest();
  fs::rename(partial, path, error);
  if (error) {
    throw CheckpointError(fmt::format("cannot rename {} to {}: {}", partial.string(), path.string(),
                                      error.message()));
  }
  manifest_[file_name] = {written.bytes, written.checksum};
  return path;
}

// Files carry checksums of their own, so training can go on without a manifest that is damaged.
void CheckpointFolder::read_manifest() {
  manifest_.clear();
  manifest_is_odd_ = false;
  warnings_.clear();
  const fs::path path = folder_ / manifest_name;
  std::error_code absent;
  if (!fs::exists(fs::symlink_status(path, absent))) return;
  try {
    manifest_ = parse_manifest(read_whole_file(path));
  } catch (const std::invalid_argument& error) {
    leave_out_manifest(fmt::format("{} is damaged ({})", path.string(), error.what()));
  } catch (const FileError& error) {
    leave_out_manifest(error.what());
  }
  std::erase_if(manifest_, [&](const auto& entry) {
    std::error_code error;
    const bool missing = !fs::exists(folder_ / entry.first, error) && !error;
    if (missing) {
      warnings_.push_back(fmt::format("{} is missing, which {} lists",
                                      (folder_ / entry.first).string(), manifest_name));
    }
    return missing;
  });
}

// The name is a usual one, so what is not understood may be somebody's.
void CheckpointFolder::leave_out_manifest(const std::string& reason) {
  manifest_is_odd_ = true;
  warnings_.push_back(fmt::format(
      "{}: it is left out, and renamed to {}{} with the next checkpoint, which writes a new one",
      reason, manifest_name, corrupt_ending));
}

void CheckpointFolder::write_manifest() {
  const fs::path path = folder_ / manifest_name;
  const std::string partial = path.string() + ".partial";
  const std::string text = manifest_text(manifest_);
  worker::UniqueFd fd = open_partial(partial);
  int cause = fd ? command_line::write_all(fd.get(), text).error : errno;
  if (cause == 0 && ::fsync(fd.get()) != 0) cause = errno;
  fd.reset();
  const bool good = cause == 0;
  std::error_code error;
  if (good && manifest_is_odd_) {
    fs::rename(path, path.string() + std::string(corrupt_ending), error);
    manifest_is_odd_ = false;
  }
  if (good) fs::rename(partial, path, error);
  if (!good || error) {
    throw CheckpointError(fmt::format("cannot write {}: {}", path.string(),
                                      good ? error.message() : std::strerror(cause)));
  }
}

// A convenience: file systems without links go without.
void CheckpointFolder::point_last_to(const std::string& file_name) const {
  const fs::path link = folder_ / last_name;
  const fs::path partial = link.string() + ".partial";
  std::error_code ignored;
  fs::remove(partial, ignored);
  fs::create_symlink(file_name, partial, ignored);
  if (!ignored) fs::rename(partial, link, ignored);
}

void CheckpointFolder::sync_folder() const {
  const int fd = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // Some network file systems do not open folders; nothing better can be done.
  ::fsync(fd);
  ::close(fd);
}

}  // namespace ddprun::trainer
