// Meeting through a file that is only ever replaced as a whole, by rename(): there is no locking
// that NFS and every cluster's file system keep.
#include "rendezvous/file_rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <thread>

#include "command_line/write_all.h"
#include "rendezvous/host_and_port.h"
#include "rendezvous/random_id.h"
#include "rendezvous/store_client.h"
#include "rendezvous/time_text.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* first_line = "ddprun-rendezvous 1";
constexpr const char* any_version = "ddprun-rendezvous ";  // What all of our files begin with.
constexpr std::size_t file_bytes_max = 64 << 10;           // No note is nearly as long.
constexpr const char* token_key = "ddprun/file_rendezvous/token";
constexpr milliseconds pause_first{5};
constexpr milliseconds pause_max{200};        // Between two looks at the file.
constexpr milliseconds connect_limit{1'000};  // For one address of a note, which may be stale.

milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

std::string rank_key(int rank) { return "ddprun/file_rendezvous/rank/" + std::to_string(rank); }

// What lies at the path of a rendezvous file.
struct FileState {
  std::optional<FileNote> note;  // A whole note of ours, perhaps of an earlier job.
  std::string foreign;           // What it is instead, if it is not ours; "" = ours, empty or none.
};

// Nothing lies there: it was never made, or another host has just removed it or put a new one in
// its place (ESTALE). The next look finds what is there then.
bool is_gone(int error) { return error == ENOENT || error == ENOTDIR || error == ESTALE; }

FileState unreadable(int error) {
  if (is_gone(error)) return {};
  return {std::nullopt, std::string("cannot be read: ") + std::strerror(error)};
}

// At most file_bytes_max of it into `text`. 0, or the error at which reading has ended.
int read_start(int fd, std::string& text) {
  text.resize(file_bytes_max);
  std::size_t size = 0;
  int error = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(fd, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return error;
}

// The owner that a file of ours gets in this folder: on a file system of another host it may be
// nobody, or one for all users.
std::optional<uid_t> owner_of_own_file(const std::filesystem::path& folder) {
  std::string path = folder / ".ddprun-owner-XXXXXX";
  UniqueFd fd(::mkostemp(path.data(), O_CLOEXEC));
  if (!fd) return std::nullopt;
  struct stat status = {};
  const bool known = ::fstat(fd.get(), &status) == 0;
  fd.reset();
  ::unlink(path.c_str());
  return known ? std::optional(status.st_uid) : std::nullopt;
}

// Whether somebody else has made this file in a folder where anybody may, as /tmp: whoever comes
// first there could have us join a store of his own. In other folders who may write is trusted.
bool is_strangers_file(const std::string& path, const struct stat& file) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::filesystem::path where = parent.empty() ? "." : parent;
  struct stat folder = {};
  if (::stat(where.c_str(), &folder) != 0) return false;  // It is gone, and the file with it.
  if ((folder.st_mode & S_IWOTH) == 0) return false;
  if (file.st_uid == ::geteuid() || file.st_uid == 0 || file.st_uid == folder.st_uid) return false;
  return owner_of_own_file(where) != file.st_uid;
}

FileState read_file(const std::string& path) {
  // Without O_NONBLOCK a named pipe would keep us here.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return unreadable(errno);
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0) return unreadable(errno);
  if (!S_ISREG(status.st_mode)) return {std::nullopt, "is not a regular file"};
  std::string text;
  if (const int error = read_start(fd.get(), text)) return unreadable(error);
  if (is_strangers_file(path, status)) {
    return {std::nullopt, "belongs to another user, uid " + std::to_string(status.st_uid) +
                              ", in a folder that anybody may write to"};
  }
  if (status.st_size > 0 && text.empty()) return {std::nullopt, "cannot be read"};
  if (!text.empty() && !text.starts_with(any_version)) {
    return {std::nullopt, "holds something else"};
  }
  return {FileNote::parse(text), ""};
}

[[noreturn]] void refuse_foreign(const std::string& path, const std::string& what) {
  throw FileRendezvousError("the rendezvous file " + path +
                            " is there already and is none of ddprun's: it " + what +
                            ". It was not touched. Name a file that is not there yet (rank 0 "
                            "makes it, and removes it after the job), or an empty one");
}

// Whole or not at all: whoever reads must not see half a note.
void write_note(const std::string& path, const FileNote& note) {
  const std::string temporary = path + "." + note.token.substr(0, 8) + ".tmp";
  const std::string text = note.to_text();
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool made = fd.valid();
  int error = made ? command_line::write_all(fd.get(), text).error : errno;
  // Other hosts must see it, not only this one.
  if (error == 0 && ::fsync(fd.get()) != 0) error = errno;
  fd.reset();
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  if (made) ::unlink(temporary.c_str());
  throw FileRendezvousError("cannot write the rendezvous file " + path + ": " +
                            std::strerror(error));
}

// Whether a store with the note's token answers there; if so, its client.
std::unique_ptr<StoreClient> answering_store(const FileNote& note, const std::string& host,
                                             std::uint16_t port, Clock::time_point deadline) {
  const StoreClientOptions options{.timeout = std::min(left_until(deadline), connect_limit),
                                   .reconnect_timeout = connect_limit};
  try {
    auto client = std::make_unique<StoreClient>(host, port, options);
    const std::vector<std::string> key = {token_key};
    // Who has connected may be slow, of many ranks at once.
    if (client->check(key, left_until(deadline)) &&
        client->get(token_key, left_until(deadline)) == note.token) {
      return client;
    }
  } catch (const StoreError&) {  // Nobody there, or somebody else.
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> addresses_of(const std::vector<InterfaceAddress>& interfaces) {
  std::vector<std::string> addresses;
  for (const InterfaceAddress& one : usable_addresses(interfaces)) {
    if (!one.loopback) addresses.push_back(one.address);
  }
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

std::string FileNote::to_text() const {
  std::string text =
      std::string(first_line) + "\ntoken " + token + "\nworld " + std::to_string(world_size) + "\n";
  for (const auto& [host, port] : stores) {
    text += "store " + host + " " + std::to_string(port) + "\n";
  }
  return text + "end\n";
}

std::optional<FileNote> FileNote::parse(const std::string& text) {
  std::istringstream lines(text);
  std::string line, word, host, rest;
  if (!std::getline(lines, line) || line != first_line) return std::nullopt;
  FileNote note;
  while (std::getline(lines, line) && line != "end") {
    std::istringstream words(line);
    int port = 0;
    words >> word;
    if (word == "token") {
      words >> note.token;
    } else if (word == "world") {
      words >> note.world_size;
    } else if (word == "store" && words >> host >> port && port > 0 && port < 65'536) {
      note.stores.emplace_back(host, static_cast<std::uint16_t>(port));
    } else {
      return std::nullopt;
    }
    if (words.fail() || words >> rest) return std::nullopt;
  }
  const bool whole = line == "end" && !note.token.empty() && note.world_size > 0;
  return whole && !note.stores.empty() ? std::optional(note) : std::nullopt;
}

FileRendezvous::FileRendezvous(const std::string& path, int rank, int world_size,
                               milliseconds timeout, const std::string& address, WaitWords words)
    : path_(path), rank_(rank), world_size_(world_size) {
  const auto failed = [&](const StoreError& error) {
    return "rank " + std::to_string(rank) + " could not enter itself through the rendezvous file " +
           path + " (limit " + time_text(timeout) + "): " + error.what();
  };
  try {
    if (rank == 0) {
      host_it(address, timeout);
    } else {
      find_it(timeout, std::move(words));
    }
  } catch (const StoreTimeout& error) {
    throw FileRendezvousTimeout(failed(error));
  } catch (const StoreError& error) {
    throw FileRendezvousError(failed(error));
  }
}

FileRendezvous::~FileRendezvous() {
  if (!store_) return;
  const auto now = read_file(path_).note;
  if (now && now->token == note_.token) ::unlink(path_.c_str());
}

void FileRendezvous::host_it(const std::string& address, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const FileState there = read_file(path_);
  if (!there.foreign.empty()) refuse_foreign(path_, there.foreign);
  if (const auto& old = there.note) {
    for (const auto& [host, port] : old->stores) {
      if (!answering_store(*old, host, port, deadline)) continue;
      throw FileRendezvousError("the rendezvous file " + path_ +
                                " belongs to a job that still runs, with its store at " +
                                host_and_port(host, port) + ": give each job a file of its own");
    }
  }
  try {
    store_ = std::make_unique<HostedStore>(address, 0);
  } catch (const std::system_error& error) {
    throw FileRendezvousError(std::string("cannot host the store of the rendezvous file ") + path_ +
                              ": " + error.what());
  }
  host_ = address.empty() ? "127.0.0.1" : address;
  port_ = store_->port();
  note_.token = random_id();
  note_.world_size = world_size_;
  for (const std::string& own :
       address.empty() ? addresses_of(interface_addresses()) : std::vector{address}) {
    note_.stores.emplace_back(own, port_);
  }
  StoreClient client(host_, port_, timeout);
  client.set(token_key, note_.token);
  client.add(rank_key(0), 1);
  write_note(path_, note_);
}

void FileRendezvous::find_it(milliseconds timeout, WaitWords words) {
  LongWait wait(std::move(words), Clock::now());
  const auto deadline = Clock::now() + timeout;
  std::string problem = "it is not there yet: is rank 0 running, and does it see the same file?";
  std::string hopeless;  // The token of a job that has no place for this rank.
  for (milliseconds pause = pause_first;; pause = std::min(2 * pause, pause_max)) {
    const auto [note, foreign] = read_file(path_);
    if (!foreign.empty()) refuse_foreign(path_, foreign);  // As rank 0 does.
    if (note && note->token != hopeless) {
      problem = "the store it names does not answer, so it may be an earlier job's";
      for (const auto& [host, port] : note->stores) {
        const auto client = answering_store(*note, host, port, deadline);
        if (!client) continue;
        if (note->world_size != world_size_) {
          problem = "its job has a world size of " + std::to_string(note->world_size) + ", not " +
                    std::to_string(world_size_);
          hopeless = note->token;
          break;
        }
        if (client->add(rank_key(rank_), 1, left_until(deadline)) == 1) {
          host_ = host;
          port_ = port;
          return;
        }
        problem = "its job has a rank " + std::to_string(rank_) + " already";
        hopeless = note->token;
        break;
      }
    }
    const auto now = Clock::now();
    if (now + pause >= deadline) break;
    if (wait.is_due(now)) wait.tell(now, "the rendezvous file " + path_ + ": " + problem);
    std::this_thread::sleep_for(pause);
  }
  throw FileRendezvousTimeout("rank " + std::to_string(rank_) +
                              " found no store through the rendezvous file " + path_ + " within " +
                              time_text(timeout) + ": " + problem);
}

}  // namespace ddprun::rendezvous
