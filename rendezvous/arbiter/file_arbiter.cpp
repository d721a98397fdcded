// The steps on the file system, in the order that the other nodes rely on.
#include "rendezvous/arbiter/file_arbiter.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "command_line/write_all.h"
#include "rendezvous/arbiter/claim_text.h"
#include "rendezvous/random_id.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t claim_bytes_max = 16u << 10;
constexpr int claims_max = 10'000;  // Of a round: a bound for who reads, not one that is met.

// 0 or errno. Synced, since an error may come no earlier: of a full disk, of a server.
int write_whole(const std::string& file, int flags, const std::string& text) {
  UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666));
  if (!fd) return errno;
  if (const int error = command_line::write_all(fd.get(), text).error) return error;
  if (::fsync(fd.get()) != 0) return errno;
  return ::close(fd.release()) == 0 ? 0 : errno;
}

// By open(), never by stat(): NFS asks the server anew for a file that is opened, and answers a
// stat from what it was told seconds ago.
int read_whole(const std::string& file, std::string& text) {
  text.clear();
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return errno;
  char buffer[4'096];
  while (text.size() < claim_bytes_max) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return 0;
}

std::string beat_file(const std::string& job_file, const std::string& node_id) {
  return job_file + ".beat-" + node_id;
}

}  // namespace

void FileArbiter::fail(const std::string& what, const std::string& file, int error) const {
  std::string advice = "give a file name on a file system that all nodes share and may write";
  if (error == ENOSPC || error == EDQUOT) advice = "make room there, or give another place";
  throw ArbiterError(
      fmt::format("{}: cannot {} {}: {}; {}", name(), what, file, std::strerror(error), advice));
}

void FileArbiter::found(const std::string& job) {
  const std::string file = file_of(job);
  const std::string text =
      fmt::format("job {} of run id {}, since {}\n", job, run_id_, claim_time(::time(nullptr)));
  if (const int error = write_whole(file, O_EXCL, text)) {
    ::unlink(file.c_str());
    fail("write", file, error);
  }
}

bool FileArbiter::knows(const std::string& job) {
  std::string text;
  const int error = read_whole(file_of(job), text);
  if (error != 0 && error != ENOENT) fail("read", file_of(job), error);
  return error == 0;
}

// Under its number, unless that is taken.
void FileArbiter::add(const std::string& job, const std::string& number,
                      const std::string& text) const {
  const std::string draft = file_of(job) + ".draft-" + random_id(8);
  if (const int error = write_whole(draft, O_EXCL, text)) {
    ::unlink(draft.c_str());
    fail("write", draft, error);
  }
  const int error = ::link(draft.c_str(), number.c_str()) == 0 ? 0 : errno;
  ::unlink(draft.c_str());
  // Over NFS a request whose answer was lost is sent again, and finds its own work done: whose the
  // number is, is read afterwards in any case.
  if (error != 0 && error != EEXIST) fail("link", number, error);
}

Claims FileArbiter::carry_out(const std::string& job, const std::string& node_id,
                              const ArbiterTask& task) {
  const std::string job_file = file_of(job);
  const std::string round = fmt::format("{}.{}-{}.", job_file, task.round.term, task.round.attempt);
  if (task.add) {
    // Whoever has slept through the job's end must not begin it anew.
    if (!knows(job)) fail("find", job_file, ENOENT);
    add(job, round + std::to_string(task.at),
        claim_text(*task.add, run_id_, job, task.round, claim_time(::time(nullptr))));
  }
  if (task.beat) {
    const std::string file = beat_file(job_file, node_id);
    const std::string text = std::to_string(*task.beat) + "\n";
    if (const int error = write_whole(file, 0, text)) fail("write", file, error);
  }
  Claims claims;
  std::string text;
  for (; claims.count < claims_max; ++claims.count) {
    const std::string number = round + std::to_string(claims.count);
    const int error = read_whole(number, text);
    if (error == ENOENT) break;
    if (error != 0) fail("read", number, error);
    const auto claim = parse_claim(text);
    if (!claim) fail("understand", number, EBADMSG);
    claims.last = *claim;
  }
  // Only now: the job is forgotten before its claims are, so that an empty list of a job that is
  // still known is one that nobody has emptied.
  if (!knows(job)) fail("find", job_file, ENOENT);
  if (claims.count == 0) return claims;
  const int error = read_whole(beat_file(job_file, claims.last.holder.node_id), text);
  if (error == 0) claims.beat = std::strtoull(text.c_str(), nullptr, 10);
  return claims;
}

void FileArbiter::forget(const std::string& job) {
  namespace fs = std::filesystem;
  const std::string job_file = file_of(job);
  ::unlink(job_file.c_str());
  const fs::path prefix(job_file + ".");
  const fs::path folder = prefix.has_parent_path() ? prefix.parent_path() : fs::path(".");
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    std::error_code ignored;
    if (name.rfind(prefix.filename().string(), 0) == 0) fs::remove(entry->path(), ignored);
  }
}

}  // namespace ddprun::rendezvous
