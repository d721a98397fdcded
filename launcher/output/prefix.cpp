// Prefixes for one rank and for several: neighbours are written as a range, or eight ranks would
// fill half a line.
#include "launcher/output/prefix.h"

#include <locale.h>
#include <wchar.h>

#include <cwchar>
#include <map>

#include "launcher/output/placeholders.h"

namespace ddprun::launcher {
namespace {

std::map<std::string, std::string> values_of(const LinePrefix& prefix,
                                             const std::vector<int>& local_ranks) {
  return {{"role_name", prefix.role},
          {"local_rank", rank_set(local_ranks)},
          {"rank", rank_set(local_ranks, prefix.rank_base)},
          {"hostname", prefix.host}};
}

}  // namespace

int columns_of(std::string_view text) {
  // The locale of whoever started us may be "C", in which nothing beyond ASCII is printable.
  static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  const locale_t before = ::uselocale(utf8);
  int columns = 0;
  std::mbstate_t state{};
  while (!text.empty()) {
    wchar_t character = 0;
    const std::size_t bytes = std::mbrtowc(&character, text.data(), text.size(), &state);
    const bool whole = bytes > 0 && bytes <= text.size();
    const int width = whole ? ::wcwidth(character) : 1;
    columns += width < 0 ? 1 : width;  // A terminal shows something for what it does not know.
    if (!whole) state = {};
    text.remove_prefix(whole ? bytes : 1);
  }
  ::uselocale(before);
  return columns;
}

std::string rank_set(const std::vector<int>& ranks, int base) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < ranks.size(); first = last + 1) {
    last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(base + ranks[first]);
    if (last > first) text += '-' + std::to_string(base + ranks[last]);
  }
  return text;
}

std::string unknown_in_prefix(const std::string& pattern) {
  std::vector<std::string> unknown;
  fill_placeholders(pattern, values_of({}, {}), &unknown);
  return unknown.empty() ? "" : unknown.front();
}

std::string LinePrefix::of(int local_rank) const { return of(std::vector<int>{local_rank}); }

std::string LinePrefix::of(const std::vector<int>& local_ranks) const {
  return fill_placeholders(pattern, values_of(*this, local_ranks));
}

}  // namespace ddprun::launcher
