// The tables of options in docs/cli.md.
#pragma once

#include <string>

namespace ddprun::launcher {

std::string markdown_table();

// `page` with what stands between the marks "options: begin" and "options: end" made new. Throws
// std::runtime_error when a mark is missing.
std::string with_markdown_table(std::string page);

}  // namespace ddprun::launcher
