// What a worker executes. Whatever cannot be found is refused here, before the other nodes are met.
#include "launcher/options/program.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "command_line/nearest.h"
#include "launcher/machine/find_program.h"
#include "launcher/options/arguments.h"
#include "launcher/options/subcommands.h"
#include "launcher/output/placeholders.h"

namespace ddprun::launcher {
namespace {

bool is_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_executable(const std::string& path) {
  return is_file(path) && ::access(path.c_str(), X_OK) == 0;
}

// Nothing on that file system is executed, whatever the mode of the file.
bool is_mounted_noexec(const std::string& path) {
  struct statvfs mounted {};
  return ::statvfs(path.c_str(), &mounted) == 0 && (mounted.f_flag & ST_NOEXEC) != 0;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool has_main(const std::string& folder) { return is_file(folder + "/__main__.py"); }

// What torchrun's users give to Python. A folder alone of a name with a slash: whatever lies in the
// current one must not stand in for a command.
bool is_for_python(const std::string& name) {
  std::string lower = name;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const char* ending : {".py", ".pyc", ".pyz"}) {
    if (ends_with(lower, ending)) return true;
  }
  return name.find('/') != name.npos && has_main(name);
}

// That of the environment which the launcher was installed into, as torchrun has it: called by its
// path, from a batch script or a container, nothing else tells of that environment.
std::string own_python(const std::string& launcher_path) {
  if (launcher_path.empty()) return "";
  const std::filesystem::path bin = std::filesystem::path(launcher_path).parent_path();
  const std::string python = (bin / "python").string();
  std::error_code ignored;
  const bool is_environment = std::filesystem::exists(bin / "../pyvenv.cfg", ignored) ||
                              std::filesystem::exists(bin / "../conda-meta", ignored);
  return is_environment && is_executable(python) ? python : "";
}

// The interpreter that a script's first line names, where that is Python; "" otherwise. Lines with
// more than that are the kernel's to read.
std::string python_of_script(const std::string& script, const std::string& path) {
  std::ifstream file(script, std::ios::binary);
  std::string line(256, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<std::size_t>(file.gcount()));
  if (line.rfind("#!", 0) != 0) return "";
  std::istringstream words(line.substr(2, line.find('\n') - 2));
  std::string first, second, third;
  words >> first >> second >> third;
  const auto is_python = [](const std::string& program) {
    return std::filesystem::path(program).filename().string().rfind("python", 0) == 0;
  };
  if (is_python(first) && second.empty()) return is_executable(first) ? first : "";
  int ignored = 0;
  const bool by_env = std::filesystem::path(first).filename() == "env" && third.empty();
  return by_env && is_python(second) ? find_program(second, path, ignored) : "";
}

std::string find_python(const EnvironmentLookup& environment, const std::string& launcher_path) {
  const std::string path = search_path(environment("PATH"));
  int ignored = 0;
  if (const auto chosen = environment("PYTHON_EXEC"); chosen && !chosen->empty()) {
    const std::string found = find_program(*chosen, path, ignored);
    if (found.empty()) {
      throw usage_error("PYTHON_EXEC=" + *chosen +
                        ": no such program; set it to a Python interpreter, or unset it");
    }
    return found;
  }
  if (std::string own = own_python(launcher_path); !own.empty()) return own;
  if (const auto venv = environment("VIRTUAL_ENV"); venv && !venv->empty()) {
    if (is_executable(*venv + "/bin/python")) return *venv + "/bin/python";
  }
  for (const char* name : {"python3", "python"}) {
    const std::string found = find_program(name, path, ignored);
    if (!found.empty()) return found;
  }
  throw usage_error(
      "no Python found: PYTHON_EXEC and VIRTUAL_ENV are not set, and neither python3 nor python is "
      "on PATH");
}

// The file of `folder` that is called almost so; "" = none.
std::string nearest_file(const std::string& word, const std::filesystem::path& folder) {
  constexpr std::size_t looked_at_max = 10'000;
  if (word.size() > NAME_MAX) return "";  // Of no file, and to compare it would take long.
  std::vector<std::string> files;
  std::error_code error;
  std::filesystem::directory_iterator each(folder, error);
  for (; !error && each != end(each) && files.size() < looked_at_max; each.increment(error)) {
    if (is_file(each->path().string())) files.push_back(each->path().filename().string());
  }
  const std::string meant = command_line::nearest(word, files);
  // Of short names half the letters are another word.
  return 2 * command_line::edit_distance(word, meant) < word.size() ? meant : "";
}

// What was probably meant where `name` is not found: a file of the same folder, or one beside the
// launcher; "" = neither.
std::string meant_file(const std::string& name, const std::string& launcher_path) {
  const std::filesystem::path path(name);
  const std::string word = path.filename().string();
  const auto folder = path.parent_path();
  const std::string here = nearest_file(word, folder.empty() ? "." : folder);
  if (!here.empty()) return (folder / here).string();
  const bool looks_beside = folder.empty() && !launcher_path.empty();
  return looks_beside ? nearest_file(word, std::filesystem::path(launcher_path).parent_path()) : "";
}

std::string asks_whether(const std::string& meant) {
  return meant.empty() ? "" : "; did you mean " + meant + "?";
}

// A path, or as a shell does PATH; else in the current folder, or beside the launcher. Whatever
// lies in a folder must not stand in for a command.
std::string find_executable(const std::string& name, const EnvironmentLookup& environment,
                            const std::string& launcher_path) {
  const bool has_folder = name.find('/') != name.npos;
  const std::string beside = (std::filesystem::path(launcher_path).parent_path() / name).string();
  if (has_folder) {
    if (is_executable(name)) return name;
  } else {
    int ignored = 0;
    const std::string found = find_program(name, search_path(environment("PATH")), ignored);
    if (!found.empty()) return found;
    // A bare name would be looked for on PATH when it is started.
    if (is_executable(name)) return "./" + name;
    if (!launcher_path.empty() && is_executable(beside)) return beside;
  }
  if (is_file(name) && is_mounted_noexec(name)) {
    throw usage_error("the program " + name +
                      " cannot be executed where it lies, on a file system that is mounted "
                      "noexec: copy it to another one, give --run-path where it is Python's, or "
                      "name the interpreter of a script before it, as in sh " +
                      name);
  }
  if (is_file(name)) {
    throw usage_error("the program " + name +
                      " is not executable: chmod +x it, give --run-path where it is Python's, or "
                      "name the interpreter before it, as in sh " +
                      name);
  }
  std::error_code unreadable;  // A name may be too long for any file.
  const auto status = std::filesystem::status(name, unreadable);
  if (std::filesystem::is_directory(status)) {
    throw usage_error("the program " + name + " is a folder" +
                      (has_main(name) ? "; ./" + name + " runs its __main__.py by Python" : ""));
  }
  if (has_folder && status.type() == std::filesystem::file_type::none) {
    throw usage_error("the program " + name + " cannot be looked at: " + unreadable.message());
  }
  const std::string command = meant_subcommand(name);
  throw usage_error(
      "the program " + name + " was not found: " +
      (has_folder ? "there is no such file"
                  : "there is no such file here, on PATH, or beside ddprun (" + beside + ")") +
      asks_whether(command.empty() ? meant_file(name, launcher_path)
                                   : "the command ddprun " + command));
}

}  // namespace

void keep_program(const ProgramRequest& request, LaunchOptions& options) {
  if (request.words.empty()) {
    throw usage_error("no program is given, as in: ddprun --nproc-per-node 2 ./train");
  }
  if (request.module && request.no_python) {
    throw usage_error("--module runs a Python module and --no-python forbids it: give one of them");
  }
  if (request.words[0].empty()) throw usage_error("the name of the program is empty");
  options.program_name = request.words[0];
  options.program = request.words;
}

void choose_program(const ProgramRequest& request, const EnvironmentLookup& environment,
                    const std::string& launcher_path, LaunchOptions& options) {
  keep_program(request, options);
  const std::string& name = request.words[0];
  const bool python =
      request.module || request.run_path || (!request.no_python && is_for_python(name));
  if (python) {
    // An interpreter of the user's own choice may be a wrapper (a container, ssh): only it knows
    // where the script is.
    const bool own_python = !environment("PYTHON_EXEC").value_or("").empty();
    if (!request.module && !own_python && !is_file(name) && !has_main(name)) {
      throw usage_error("the script " + name + " was not found" +
                        asks_whether(meant_file(name, "")));
    }
    // As torchrun: without -u what Python prints into a pipe comes late, or never when it is
    // killed.
    options.program = {find_python(environment, launcher_path), "-u"};
    if (request.module) options.program.push_back("-m");
    options.program.push_back(name);
  } else {
    const std::string found = find_executable(name, environment, launcher_path);
    const std::string interpreter =
        request.no_python ? "" : python_of_script(found, search_path(environment("PATH")));
    options.program.clear();
    if (!interpreter.empty()) options.program = {interpreter, "-u"};
    options.program.push_back(found);
  }
  options.first_argument = options.program.size();
  options.program.insert(options.program.end(), request.words.begin() + 1, request.words.end());
}

std::vector<std::string> worker_argv(const LaunchOptions& options, int local_rank) {
  const std::string rank = std::to_string(local_rank);
  std::vector<std::string> argv;
  for (std::size_t i = 0; i < options.program.size(); ++i) {
    const bool users = i >= options.first_argument;
    if (i == options.first_argument && options.local_rank_argument) {
      argv.push_back("--local-rank=" + rank);
    }
    argv.push_back(users ? fill_placeholders(options.program[i], {{"local_rank", rank}})
                         : options.program[i]);
  }
  if (options.local_rank_argument && options.first_argument == options.program.size()) {
    argv.push_back("--local-rank=" + rank);
  }
  return argv;
}

const char* device_list_name(const EnvironmentLookup& environment) {
  const auto hip = environment("HIP_VISIBLE_DEVICES");
  return hip && !hip->empty() ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES";
}

std::string visible_device(int local_rank, const std::optional<std::string>& inherited_list) {
  if (!inherited_list) return std::to_string(local_rank);
  std::size_t begin = 0;
  for (int skipped = 0; skipped < local_rank; ++skipped) {
    begin = inherited_list->find(',', begin);
    if (begin == std::string::npos) return "";
    ++begin;
  }
  // CUDA takes blanks around an entry, PyTorch's own reading of the variable does not.
  const std::string entry = inherited_list->substr(begin, inherited_list->find(',', begin) - begin);
  const std::size_t first = entry.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return entry.substr(first, entry.find_last_not_of(" \t") - first + 1);
}

}  // namespace ddprun::launcher
