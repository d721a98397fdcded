// fnmatch(3) decides what a pattern means, as in the shell that the user has it from.
#include "launcher/hosts/chosen_environment.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <stdexcept>

namespace ddprun::launcher {
namespace {

std::string name_of_variable(const std::string& entry) { return entry.substr(0, entry.find('=')); }

void require_name(const std::string& name, const std::string& wish) {
  const auto belongs = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  if (!name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
      std::all_of(name.begin(), name.end(), belongs)) {
    return;
  }
  throw std::invalid_argument("\"" + wish +
                              "\": expected NAME, NAME=VALUE or a pattern, as in -x 'NCCL_*'");
}

}  // namespace

std::vector<std::string> split_wishes(const std::string& text) {
  // A value may hold commas (CUDA_VISIBLE_DEVICES=0,1), and a list of names no value.
  if (text.find('=') != text.npos) return {text};
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

ChosenEnvironment choose_environment(const std::vector<std::string>& wishes,
                                     const std::vector<std::string>& environment) {
  std::map<std::string, std::string> here, chosen;
  for (const std::string& entry : environment) here.emplace(name_of_variable(entry), entry);
  ChosenEnvironment result;
  for (const std::string& wish : wishes) {
    const std::string name = name_of_variable(wish);
    if (wish.find('=') != wish.npos) {
      require_name(name, wish);
      chosen[name] = wish;
    } else if (wish.find_first_of("*?") != wish.npos) {
      std::size_t found = 0;
      for (const auto& [candidate, entry] : here) {
        // The other host's launcher would read PET_* as options of its own, which -H has decided.
        const bool fits = ::fnmatch(wish.c_str(), candidate.c_str(), 0) == 0;
        if (!fits || candidate.rfind("PET_", 0) == 0) continue;
        chosen[candidate] = entry;
        ++found;
      }
      if (found == 0) result.notes.push_back("-x " + wish + ": no variable has such a name here");
    } else {
      require_name(name, wish);
      const auto found = here.find(name);
      if (found != here.end()) chosen[name] = found->second;
      if (found == here.end()) {
        result.notes.push_back("-x " + name + ": it is not set here, so it does not go along");
      }
    }
  }
  for (auto& [name, entry] : chosen) result.variables.push_back(std::move(entry));
  return result;
}

}  // namespace ddprun::launcher
