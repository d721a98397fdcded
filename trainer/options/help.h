// What `train` says about its options: help of any width, and which option a word stands for. Made
// from what the parser knows, so that no text can forget an option.
//
// A core: the parser and the width in, text out.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::trainer {

// --help: every option, in lines of at most `columns`.
std::string full_help(const CLI::App& app, std::size_t columns);

// The arguments with their options' whole names: dashes for underscores, and the start of a name
// for it where it fits one option alone. Throws UsageError for a name that fits none or several.
std::vector<std::string> with_whole_names(const CLI::App& app, std::vector<std::string> arguments);

// ": it is --lr here" for another trainer's word (foreign_names.h), ", did you mean --batch-size?",
// or "" where no option is near.
std::string suggestion(const CLI::App& app, const std::string& name);

}  // namespace ddprun::trainer
