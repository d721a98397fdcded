// Both versions of cgroups and all patterns of cores, as text, so that tests need neither.
#include "launcher/report/kernel_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace ddprun::launcher {
namespace {

constexpr std::int64_t no_limit_bytes = std::int64_t{1}
                                        << 60;  // Version 1: the largest page count.

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    if (end != 0) parts.push_back(text.substr(0, end));
    if (end == text.npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

std::optional<std::int64_t> number(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range && stop == text.data() + text.size()) {
    return no_limit_bytes;
  }
  if (error != std::errc() || stop != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

bool holds(std::string_view list, std::string_view name) {
  for (const std::string_view part : split(list, ',')) {
    if (part == name) return true;
  }
  return false;
}

struct OwnPath {
  bool version_2 = false;
  std::string_view path;
};

// Lines are "id:controllers:path"; version 2 is "0::path".
std::optional<OwnPath> own_path(std::string_view cgroup) {
  std::optional<OwnPath> second;
  for (const std::string_view line : split(cgroup, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t next = first == line.npos ? line.npos : line.find(':', first + 1);
    if (next == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, next - first - 1);
    const std::string_view path = line.substr(next + 1);
    if (holds(controllers, "memory")) return OwnPath{false, path};
    if (controllers.empty()) second = OwnPath{true, path};
  }
  return second;
}

// Spaces and the like stand as \040 in mountinfo.
std::string unescaped(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    const auto [stop, error] =
        std::from_chars(text.data() + i + 1, text.data() + std::min(i + 4, text.size()), code, 8);
    if (text[i] == '\\' && error == std::errc() && stop == text.data() + i + 4) {
      result += static_cast<char>(code);
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

struct Mount {
  std::string point;
  std::string root;  // Which cgroup is mounted there.
};

// Fields: id parent device root point options ... "-" type source super-options.
std::optional<Mount> find_mount(std::string_view mountinfo, bool version_2) {
  for (const std::string_view line : split(mountinfo, '\n')) {
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    const auto before = split(line.substr(0, dash), ' ');
    const auto after = split(line.substr(dash + 3), ' ');
    if (before.size() < 6 || after.size() < 2) continue;
    const bool wanted = version_2
                            ? after[0] == "cgroup2"
                            : after[0] == "cgroup" && after.size() > 2 && holds(after[2], "memory");
    if (wanted) return Mount{unescaped(before[4]), unescaped(before[3])};
  }
  return std::nullopt;
}

// The part of `path` below `root`, which a container without a cgroup namespace mounts as its /.
std::string_view below(std::string_view path, std::string_view root) {
  if (root == "/") return path;
  if (path.substr(0, root.size()) != root) return "/";  // Somebody else's view: all we see is ours.
  path.remove_prefix(root.size());
  return path;
}

std::string glob_quoted(std::string_view text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted;
}

std::string expanded(char specifier, const CoreSource& source) {
  switch (specifier) {
    case '%':
      return "%";
    case 'p':
      return std::to_string(source.pid);
    case 's':
      return std::to_string(source.signal);
    case 'h':
      return glob_quoted(source.host);
    case 'u':
      return std::to_string(source.uid);
    case 'g':
      return std::to_string(source.gid);
    case 't':  // Known to the process alone, or numbered as another pid namespace does.
    case 'e':
    case 'f':
    case 'E':
    case 'i':
    case 'I':
    case 'P':
    case 'c':
    case 'd':
    case 'C':
      return "*";
    default:  // The kernel drops what it does not know.
      return "";
  }
}

}  // namespace

MemoryCgroup find_memory_cgroup(std::string_view cgroup, std::string_view mountinfo) {
  const auto own = own_path(cgroup);
  if (!own) return {};
  const auto mount = find_mount(mountinfo, own->version_2);
  if (!mount) return {};
  MemoryCgroup found{own->version_2, {}};
  std::string path(below(own->path, mount->root));
  while (!path.empty() && path != "/") {
    found.folders.push_back(mount->point + path);
    path.erase(path.rfind('/'));
  }
  found.folders.push_back(mount->point);
  return found;
}

std::optional<std::int64_t> counter(std::string_view text, std::string_view name) {
  for (const std::string_view line : split(text, '\n')) {
    const std::size_t space = line.find(' ');
    if (space != line.npos && line.substr(0, space) == name) return number(line.substr(space + 1));
  }
  return std::nullopt;
}

std::optional<std::int64_t> memory_amount(std::string_view text) {
  const auto value = number(text);
  return value && *value < no_limit_bytes ? value : std::nullopt;
}

CorePlace core_place(std::string_view pattern, bool append_pid, const CoreSource& source) {
  while (!pattern.empty() && (pattern.back() == '\n' || pattern.back() == ' ')) {
    pattern.remove_suffix(1);
  }
  if (pattern.empty()) return {};
  if (pattern[0] == '|') {
    pattern.remove_prefix(1);
    while (!pattern.empty() && pattern[0] == ' ') pattern.remove_prefix(1);
    return {"", std::string(pattern.substr(0, pattern.find(' ')))};
  }
  if (pattern[0] == '@') return {"", std::string(pattern)};  // A socket, since Linux 6.16.
  std::string glob;
  bool names_pid = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      glob += glob_quoted(pattern.substr(i, 1));
    } else if (++i < pattern.size()) {
      names_pid = names_pid || pattern[i] == 'p';
      glob += expanded(pattern[i], source);
    }
  }
  if (append_pid && !names_pid) glob += fmt::format(".{}", source.pid);
  if (glob[0] != '/') glob = fmt::format("{}/{}", glob_quoted(source.folder), glob);
  return {glob, ""};
}

std::string core_advice(const std::string& handler, int pid) {
  if (handler.find("systemd-coredump") != handler.npos) {
    return fmt::format("kept by systemd-coredump: coredumpctl info {}", pid);
  }
  if (handler.find("apport") != handler.npos) {
    return "given to apport: look in /var/crash and /var/lib/apport/coredump";
  }
  return "given to " + handler;
}

}  // namespace ddprun::launcher
