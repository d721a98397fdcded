// Which line waits for whom. Lines are numbered in the order in which they came, so that "behind
// all that this writer has here" is one comparison.
#include "launcher/output/equal_lines.h"

#include <algorithm>
#include <utility>

namespace ddprun::launcher {

EqualLines::EqualLines(Clock::duration window, std::size_t bytes_max)
    : window_(window), bytes_max_(bytes_max) {}

void EqualLines::add_writer(int writer) { ++writers_[writer].streams; }

void EqualLines::remove_writer(int writer) { --writers_[writer].streams; }

// What a waiting line costs: its text and the bookkeeping around it, roughly.
std::size_t EqualLines::cost(const Waiting& waiting) { return waiting.line.text.size() + 128; }

void EqualLines::add(int writer, std::string_view line, Clock::time_point now) {
  std::uint64_t& next = writers_[writer].next;
  if (const auto equal = places_.find(line); equal != places_.end()) {
    // Only behind what this writer has said already: its own lines keep their order.
    const auto place = std::lower_bound(equal->second.begin(), equal->second.end(), next);
    if (place != equal->second.end()) {
      auto& joined = waiting_[*place - first_].line.writers;
      joined.insert(std::upper_bound(joined.begin(), joined.end(), writer), writer);
      next = *place + 1;
      return;
    }
  }
  waiting_.push_back({{std::string(line), {writer}}, now});
  bytes_ += cost(waiting_.back());
  places_[waiting_.back().line.text].push_back(end() - 1);
  next = end();
}

EqualLines::Line EqualLines::pop() {
  Waiting& oldest = waiting_.front();
  bytes_ -= cost(oldest);
  const auto places = places_.find(oldest.line.text);
  places->second.pop_front();
  std::deque<std::uint64_t> rest = std::move(places->second);
  // The key looks into the text that leaves; an equal line behind it gives the next one.
  places_.erase(places);
  if (!rest.empty()) {
    const std::string_view key = waiting_[rest.front() - first_].line.text;
    places_.emplace(key, std::move(rest));
  }
  Line line = std::move(oldest.line);
  waiting_.pop_front();
  ++first_;
  return line;
}

std::optional<EqualLines::Line> EqualLines::take(Clock::time_point now) {
  if (waiting_.empty()) return std::nullopt;
  const Waiting& oldest = waiting_.front();
  const std::vector<int>& said = oldest.line.writers;
  // A rank that has ended will say nothing more, so nobody waits for its copy of the line.
  const bool complete = std::all_of(writers_.begin(), writers_.end(), [&said](const auto& writer) {
    return writer.second.streams == 0 || std::binary_search(said.begin(), said.end(), writer.first);
  });
  if (!complete && now - oldest.since < window_ && bytes_ <= bytes_max_) return std::nullopt;
  return pop();
}

std::optional<EqualLines::Line> EqualLines::take_of(int writer) {
  const auto found = writers_.find(writer);
  if (found == writers_.end() || found->second.next <= first_) return std::nullopt;
  return pop();
}

std::optional<EqualLines::Line> EqualLines::take_any() {
  return waiting_.empty() ? std::nullopt : std::optional(pop());
}

std::optional<EqualLines::Clock::time_point> EqualLines::deadline() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.front().since + window_;
}

}  // namespace ddprun::launcher
