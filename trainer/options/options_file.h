// A file of options as CLI11's reader, which knows less of TOML, is to have it.
//
// A core: text in, text out.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::trainer {

// The same without comments, and with each list on one line: CLI11 takes a # in quotes for a
// comment. What it would read wrongly is refused, so that no option gets another value than stands
// there, and so is a name that stands there twice, of which it would take the first value, or join
// both; throws UsageError with the line's number.
std::string plain_options(std::string_view text);

}  // namespace ddprun::trainer
