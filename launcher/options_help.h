// The texts about the options that users read, all made from options_table.h.
#pragma once

#include <string>

namespace ddprun::launcher {

std::string short_help();      // -h: one screen.
std::string full_help();       // --help: examples, then every option by group.
std::string version_text();    // --version
std::string markdown_table();  // The tables of docs/cli.md.

}  // namespace ddprun::launcher
