// Reads and makes the file with plain system calls: streams keep copies of what passes through
// them.
#include "rendezvous/secure/job_secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <vector>

#include "command_line/write_all.h"
#include "rendezvous/parse_number.h"
#include "rendezvous/random_id.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::rendezvous {
namespace {

constexpr int handed_secret_wait_ms = 30'000;  // For who has the other end of a pipe.
constexpr std::size_t made_bytes = 32;

[[noreturn]] void refuse_secret(const std::string& file, const std::string& why,
                                const std::string& what_to_do) {
  throw SecurityError(
      fmt::format("cannot use {} as the job's secret: {}; {}", file, why, what_to_do));
}

// "-", /dev/stdin and /dev/fd/N: a pipe has no name that could be opened again, nor does it need
// the checks of a file, since it was given to us alone.
std::optional<int> handed_descriptor(const std::string& file) {
  if (file == "-" || file == "/dev/stdin") return STDIN_FILENO;
  constexpr std::string_view folder = "/dev/fd/";
  if (file.rfind(folder, 0) != 0) return std::nullopt;
  const auto fd = parse_number<int>(file.substr(folder.size()));
  return fd && *fd >= 0 ? fd : std::nullopt;
}

bool is_blank(unsigned char letter) {
  return letter == '\n' || letter == '\r' || letter == ' ' || letter == '\t';
}

// All that comes, one byte more than there may be at most, without the blanks at the end.
SecretBytes read_all(int fd, const std::string& file) {
  SecretBytes buffer(secret_chars_max + 2);
  std::size_t size = 0;
  while (size < buffer.size()) {
    pollfd polled{fd, POLLIN, 0};
    if (::poll(&polled, 1, handed_secret_wait_ms) == 0) {
      refuse_secret(file, "nothing came from it for 30 s", "end what is written to it");
    }
    const ssize_t got = ::read(fd, buffer.data() + size, buffer.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse_secret(file, std::strerror(errno), "check what it is");
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  while (size > 0 && is_blank(buffer.data()[size - 1])) --size;
  buffer.keep(0, size);
  return buffer;
}

bool is_in_group(gid_t group) {
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(::getgroups(0, nullptr), 0)));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(count, 0)));
  return group == ::getegid() || std::find(groups.begin(), groups.end(), group) != groups.end();
}

// As ssh does with its keys: a secret that others could read, or put there, is none.
void check_secret_file(int fd, const std::string& file) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) refuse_secret(file, std::strerror(errno), "check what it is");
  if (!S_ISREG(status.st_mode)) {
    refuse_secret(file, "it is no regular file", "name a file, or - for what comes on stdin");
  }
  const bool ours = status.st_uid == ::geteuid();
  if (!ours && status.st_uid != 0) {
    refuse_secret(file, fmt::format("it belongs to another user (number {})", status.st_uid),
                  "use a copy of your own");
  }
  // A secret that Kubernetes mounts belongs to root, and to the pod's group, which may read it:
  // also where the pod runs as root. Group 0 there is what everything has that was given to nobody.
  const bool of_a_group =
      !ours || (status.st_uid == 0 && status.st_gid != 0 && is_in_group(status.st_gid));
  const mode_t too_open = status.st_mode & (of_a_group ? 0027 : 0077);
  if (too_open != 0) {
    refuse_secret(file,
                  fmt::format("others may {} it (mode {:04o})",
                              (too_open & 0044) != 0 ? "read" : "write", status.st_mode & 07777),
                  "chmod 600 it, and make a new one if somebody may have seen this one");
  }
}

SecretBytes checked_secret(SecretBytes secret, const std::string& file) {
  if (const std::string problem = secret_problem(secret.text()); !problem.empty()) {
    refuse_secret(file, problem, "make one with: openssl rand -hex 32");
  }
  return secret;
}

void write_new_secret(int fd) {
  int error = command_line::write_all(fd, make_secret_text("getrandom").text()).error;
  if (error == 0) error = command_line::write_all(fd, "\n").error;
  if (error == 0 && ::fsync(fd) != 0) error = errno;
  if (error != 0) throw std::system_error(error, std::generic_category(), "write");
}

// Complete under another name first, then linked: link() fails where the name is taken, also on a
// file system that several nodes share, so that the first one's secret is everybody's.
bool make_secret(const std::string& file) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(file).parent_path();
  fs::create_directories(folder.parent_path());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw std::system_error(errno, std::generic_category(), "mkdir");
  }
  const std::string draft = file + "." + random_id(8);
  UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) throw std::system_error(errno, std::generic_category(), "open");
  int linked = -1;
  int error = 0;
  try {
    write_new_secret(fd.get());
    linked = ::link(draft.c_str(), file.c_str());
    error = errno;
  } catch (...) {
    ::unlink(draft.c_str());
    throw;
  }
  ::unlink(draft.c_str());
  if (linked != 0 && error != EEXIST) {
    throw std::system_error(error, std::generic_category(), "link");
  }
  return linked == 0;
}

UniqueFd open_secret(const std::string& file) {
  // Not to hang on a named pipe, which check_secret_file() refuses.
  return UniqueFd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

}  // namespace

std::string usual_secret_file(
    const std::function<std::optional<std::string>(const std::string& name)>& environment) {
  const std::string config = environment("XDG_CONFIG_HOME").value_or("");
  // Its specification: a relative path is to be ignored.
  if (!config.empty() && config.front() == '/') return config + "/ddprun/secret";
  const std::string home = environment("HOME").value_or("");
  return home.empty() ? "" : home + "/.config/ddprun/secret";
}

std::string secret_problem(std::string_view text) {
  if (text.empty()) return "it is empty";
  if (text.size() > secret_chars_max) {
    return fmt::format("it is longer than {} characters", secret_chars_max);
  }
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; })) {
    return "it holds other bytes than printable characters without blanks";
  }
  if (text.size() < secret_chars_min) {
    return fmt::format("its {} characters can be guessed, {} are the least", text.size(),
                       secret_chars_min);
  }
  return "";
}

// Not random_id(), whose text would be left behind in the heap.
SecretBytes make_secret_text(const char* tried) {
  SecretBytes random(made_bytes);
  SecretBytes text(2 * made_bytes);
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    throw std::system_error(errno, std::generic_category(), tried);
  }
  for (std::size_t i = 0; i < made_bytes; ++i) {
    text.data()[2 * i] = static_cast<unsigned char>("0123456789abcdef"[random.data()[i] >> 4]);
    text.data()[2 * i + 1] = static_cast<unsigned char>("0123456789abcdef"[random.data()[i] & 15]);
  }
  return text;
}

SecretBytes read_secret(const std::string& file) {
  if (const auto handed = handed_descriptor(file)) {
    if (::isatty(*handed) == 1) {
      refuse_secret(file, "it is a terminal, which would show it", "give a file or a pipe");
    }
    return checked_secret(read_all(*handed, file), file);
  }
  const UniqueFd fd = open_secret(file);
  if (!fd) {
    refuse_secret(file, std::strerror(errno),
                  errno == ENOENT ? "copy it from another node, or make one: (umask 077; openssl "
                                    "rand -hex 32 > FILE)"
                                  : "it must be a file that this user alone may read");
  }
  check_secret_file(fd.get(), file);
  return checked_secret(read_all(fd.get(), file), file);
}

bool secret_comes_on_stdin(const std::string& file) {
  return handed_descriptor(file) == STDIN_FILENO;
}

SecretBytes read_or_make_secret(const std::string& file, bool& made) {
  made = false;
  if (::access(file.c_str(), F_OK) != 0 && errno == ENOENT) {
    try {
      made = make_secret(file);
    } catch (const std::system_error& error) {
      refuse_secret(file, fmt::format("it is not there and cannot be made: {}", error.what()),
                    "name another with --secret-file");
    }
    // Another node made it a moment ago: a network file system may show it late.
    for (int tries = 0; !made && tries < 60 && ::access(file.c_str(), F_OK) != 0; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  return read_secret(file);
}

}  // namespace ddprun::rendezvous
