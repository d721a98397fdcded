// Folders are opened before they are judged, and used through that descriptor: between a look at a
// name in /tmp and its use somebody may have put another folder there.
#include "launcher/status/run_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "rendezvous/random_id.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t boot_chars = 12;

// "" = the kernel does not tell, in some sandboxes: then names say no machine.
const std::string& own_boot() {
  static const std::string boot = [] {
    std::string id;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
    std::erase(id, '-');
    return id.substr(0, boot_chars);
  }();
  return boot;
}

// "" = the name says none.
std::string boot_of(const std::string& name) {
  const std::size_t begin = name.find('-');
  const std::size_t end = name.rfind('-');
  return begin == end ? "" : name.substr(begin + 1, end - begin - 1);
}

bool may_be_of_this_machine(const std::string& name) {
  const std::string boot = boot_of(name);
  return boot.empty() || own_boot().empty() || boot == own_boot();
}

}  // namespace

std::vector<std::string> run_folder_places(const rendezvous::EnvironmentLookup& environment,
                                           unsigned user) {
  const std::string chosen = environment("DDPRUN_RUN_DIR").value_or("");
  if (!chosen.empty()) return {chosen};
  std::vector<std::string> places;
  const auto add = [&](const std::string& place) {
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  };
  if (const std::string own = environment("XDG_RUNTIME_DIR").value_or(""); !own.empty()) {
    add(own + "/ddprun");
  }
  if (const std::string own = environment("TMPDIR").value_or(""); !own.empty()) {
    add(fmt::format("{}/ddprun-{}", own, user));
  }
  add(fmt::format("/tmp/ddprun-{}", user));
  add(fmt::format("/run/user/{}/ddprun", user));  // Of a login beside this one, which has the name.
  return places;
}

rendezvous::UniqueFd open_run_folder(const std::string& path, bool make, std::string& why) {
  if (make && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    why = fmt::format("cannot make the folder {}: {}", path, std::strerror(errno));
    return {};
  }
  rendezvous::UniqueFd folder(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) {
    const int error = errno;
    why = fmt::format("cannot open the folder {}: {}", path, std::strerror(error));
    errno = error;
    return {};
  }
  struct stat facts {};
  if (::fstat(folder.get(), &facts) != 0 || facts.st_uid != ::geteuid() ||
      (facts.st_mode & 077) != 0) {
    why = fmt::format("the folder {} is not this user's alone (chmod 700, or remove it)", path);
    return {};
  }
  return folder;
}

std::string new_socket_name() {
  return fmt::format("{}-{}-{}", ::getpid(), own_boot(), rendezvous::random_id(4));
}

bool is_of_this_machine(const std::string& name) {
  return !own_boot().empty() && boot_of(name) == own_boot();
}

std::vector<std::string> socket_names(int folder) {
  std::vector<std::string> names;
  const int again = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (again < 0) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(again), ::closedir);
  if (!entries) {
    ::close(again);
    return names;
  }
  while (const dirent* entry = ::readdir(entries.get())) {
    // One that begins with a dot is not ready yet.
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) != 0 &&
        may_be_of_this_machine(entry->d_name)) {
      names.emplace_back(entry->d_name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<sockaddr_un> socket_address(int folder, const std::string& name) {
  const std::string path = fmt::format("/proc/self/fd/{}/{}", folder, name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace ddprun::launcher
