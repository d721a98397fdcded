// While it lives, the program's global locale puts spaces into numbers, as those of France and
// Russia do, and takes them for a part of numbers. A machine needs no such locale for it.
#pragma once

#include <locale>
#include <string>

namespace ddprun::testing {

class SpacedNumbers {
 public:
  SpacedNumbers() : before_(std::locale::global({std::locale::classic(), new Groups})) {}
  ~SpacedNumbers() { std::locale::global(before_); }
  SpacedNumbers(const SpacedNumbers&) = delete;
  SpacedNumbers& operator=(const SpacedNumbers&) = delete;

 private:
  struct Groups : std::numpunct<char> {
    char do_thousands_sep() const override { return ' '; }
    std::string do_grouping() const override { return "\3"; }
  };

  std::locale before_;
};

}  // namespace ddprun::testing
