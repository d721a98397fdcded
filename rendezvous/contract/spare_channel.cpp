// Read by workers that a launcher of another version may have started: what is not understood is
// nothing, and no error.
#include "rendezvous/contract/spare_channel.h"

#include <locale>
#include <sstream>

namespace ddprun::rendezvous {

std::string rank_message(const Environment& environment) {
  std::string message;
  for (const auto& [name, value] : environment) {
    message += name;
    message += '=';
    message += value;
    message += '\0';
  }
  message += '\0';
  return message;
}

std::string attempt_over_message(const std::string& why) {
  return rank_message({{attempt_over_variable, why}});
}

namespace {

// Takes it off the front of `message`.
std::optional<Environment> take_environment(std::string_view& message) {
  Environment environment;
  for (std::size_t end = 0; (end = message.find('\0')) != message.npos;) {
    const std::string_view entry = message.substr(0, end);
    message.remove_prefix(end + 1);
    if (entry.empty()) return environment;
    const std::size_t equals = entry.find('=');
    if (equals != entry.npos && equals > 0) {
      environment.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Environment> read_rank_message(std::string_view message) {
  return take_environment(message);
}

std::optional<Environment> take_message(std::string& received) {
  std::string_view rest = received;
  auto environment = take_environment(rest);
  if (environment) received.erase(0, received.size() - rest.size());
  return environment;
}

std::optional<std::string> attempt_over(const Environment& message) {
  for (const auto& [name, value] : message) {
    if (name == attempt_over_variable) return value;
  }
  return std::nullopt;
}

std::string death_marks_text(const DeathMarkSet& set) {
  std::string text = std::to_string(set.id);
  for (const DeathMark& mark : set.marks) {
    text += ' ' + std::to_string(mark.semaphore) + ':' + std::to_string(mark.value);
  }
  return text;
}

std::optional<DeathMarkSet> read_death_marks(const std::string& text) {
  std::istringstream words(text);
  words.imbue(std::locale::classic());  // The program's own may take a space into a number.
  DeathMarkSet set;
  if (!(words >> set.id) || set.id < 0) return std::nullopt;
  for (std::string word; words >> word;) {
    std::istringstream pair(word);
    DeathMark mark;
    char colon = 0;
    if (!(pair >> mark.semaphore >> colon >> mark.value) || colon != ':' || !pair.eof()) {
      return std::nullopt;
    }
    set.marks.push_back(mark);
  }
  return set;
}

}  // namespace ddprun::rendezvous
