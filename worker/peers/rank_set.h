// Some of a communicator's ranks, of which there may be any number.
//
// A core: a value.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::worker {

class RankSet {
 public:
  RankSet() = default;
  RankSet(std::initializer_list<int> ranks) {
    for (const int rank : ranks) insert(rank);
  }
  static RankSet all_of(int world_size) {
    RankSet ranks;
    for (int rank = 0; rank < world_size; ++rank) ranks.insert(rank);
    return ranks;
  }

  bool empty() const { return words_.empty(); }
  bool contains(int rank) const {
    return word_of(rank) < words_.size() && (words_[word_of(rank)] & bit_of(rank)) != 0;
  }
  void insert(int rank) {
    if (word_of(rank) >= words_.size()) words_.resize(word_of(rank) + 1);
    words_[word_of(rank)] |= bit_of(rank);
  }
  RankSet& operator|=(const RankSet& others) {
    if (words_.size() < others.words_.size()) words_.resize(others.words_.size());
    for (std::size_t i = 0; i < others.words_.size(); ++i) words_[i] |= others.words_[i];
    return *this;
  }
  RankSet& operator-=(const RankSet& others) {
    const std::size_t common = std::min(words_.size(), others.words_.size());
    for (std::size_t i = 0; i < common; ++i) words_[i] &= ~others.words_[i];
    trim();
    return *this;
  }
  bool operator==(const RankSet&) const = default;

  std::vector<int> ranks() const {  // In ascending order.
    std::vector<int> ranks;
    for (int rank = 0; rank < static_cast<int>(words_.size() * word_bits); ++rank) {
      if (contains(rank)) ranks.push_back(rank);
    }
    return ranks;
  }

  // As peers tell it, in this machine's byte order; nothing: these bytes are of no set.
  std::string to_bytes() const {
    return {reinterpret_cast<const char*>(words_.data()), words_.size() * sizeof(Word)};
  }
  static std::optional<RankSet> from_bytes(std::string_view bytes) {
    if (bytes.size() % sizeof(Word) != 0) return std::nullopt;
    RankSet ranks;
    ranks.words_.resize(bytes.size() / sizeof(Word));
    if (!bytes.empty()) std::memcpy(ranks.words_.data(), bytes.data(), bytes.size());
    ranks.trim();
    return ranks;
  }

 private:
  using Word = std::uint64_t;
  static constexpr std::size_t word_bits = 64;

  static std::size_t word_of(int rank) {
    assert(rank >= 0);
    return static_cast<std::size_t>(rank) / word_bits;
  }
  static Word bit_of(int rank) { return Word{1} << (static_cast<std::size_t>(rank) % word_bits); }
  void trim() {
    while (!words_.empty() && words_.back() == 0) words_.pop_back();
  }

  std::vector<Word> words_;  // Rank r is bit r % 64 of word r / 64. The last one is not 0.
};

inline RankSet operator|(RankSet left, const RankSet& right) { return left |= right; }
inline RankSet operator-(RankSet left, const RankSet& right) { return left -= right; }

}  // namespace ddprun::worker
