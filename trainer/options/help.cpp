// CLI11 draws its own help in columns of a fixed width, and takes no starts of names.
#include "trainer/options/help.h"

#include <algorithm>

#include "command_line/nearest.h"
#include "command_line/wrapped.h"
#include "trainer/options/foreign_names.h"
#include "trainer/options/read_command_line.h"
#include "trainer/options/train_options.h"

namespace ddprun::trainer {
namespace {

constexpr std::size_t meaning_indent = 8;

// Without what belongs to another option: CLI11 counts "--no-overlap" among those of "--overlap".
std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    const auto& own = option->get_lnames();
    names.insert(names.end(), own.begin(), own.end());
  }
  return names;
}

bool is_switch(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// "-c, --config FILE"
std::string signature(const CLI::Option& option) {
  std::string text;
  for (const std::string& letter : option.get_snames()) text += "-" + letter + ", ";
  bool first = true;
  for (const std::string& name : option.get_lnames()) {
    text += (first ? "--" : ", --") + name;
    first = false;
  }
  if (is_switch(option)) return text;
  const bool may_miss = option.get_items_expected_min() == 0;
  const std::string value = option.get_type_name();
  return text + (may_miss ? " [" + value + "]" : " " + value);
}

std::string option_text(const CLI::Option& option, std::size_t columns) {
  std::string meaning = option.get_description();
  const std::string& usual = option.get_default_str();
  if (!usual.empty() && !is_switch(option)) meaning += " (" + usual + ")";
  // The choices of a long list are broken at the bars between them.
  std::string head = "  " + signature(option);
  if (head.size() > columns) {
    for (std::size_t at = head.find('|'); at != head.npos; at = head.find('|', at + 2)) {
      head.insert(at, " ");
    }
    head = command_line::wrapped(head, 2, columns);
    head.pop_back();
  }
  return head + "\n" + command_line::wrapped(meaning, meaning_indent, columns);
}

// The option's whole name, "batch-size" for "batch".
std::string whole_name(const CLI::App& app, const std::string& name) {
  std::vector<std::string> starts;
  for (const std::string& candidate : long_names(app)) {
    if (candidate == name) return name;
    if (!name.empty() && candidate.starts_with(name)) starts.push_back(candidate);
  }
  if (starts.size() == 1) return starts.front();
  if (!starts.empty()) {
    throw UsageError("--" + name + " is ambiguous: it could be " +
                     command_line::listed_options(starts));
  }
  throw UsageError("unknown option --" + name + suggestion(app, name));
}

}  // namespace

std::string suggestion(const CLI::App& app, const std::string& name) {
  // First: --amp is three letters like --ema, and has nothing to do with it.
  for (const ForeignName& foreign : foreign_names) {
    if (name == foreign.elsewhere) return ": it is --" + std::string(foreign.here) + " here";
  }
  const std::string guess = command_line::nearest(name, long_names(app));
  return guess.empty() ? "" : ", did you mean --" + guess + "?";
}

std::vector<std::string> with_whole_names(const CLI::App& app, std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (!argument.starts_with("--") || argument.size() == 2) continue;
    const std::size_t end = std::min(argument.find('='), argument.size());
    std::string name = argument.substr(2, end - 2);
    std::replace(name.begin(), name.end(), '_', '-');
    argument.replace(2, end - 2, whole_name(app, name));
  }
  return arguments;
}

std::string short_help() {
  return R"(usage: train [options]

  train --dataset mnist --epochs 1
  ddprun --nproc-per-node 2 train --dataset cifar10 --checkpoint-dir runs/1
  train --evaluate --weights model.pth --dataset imagefolder --data DIR

  --dataset NAME          mnist, cifar10, stl10, imagefolder, csv or synthetic
  --data DIR              its files (data/<dataset>); --download fetches them
  --model NAME            resnet18 to resnet152, resnet20 to resnet110, convnet
  --epochs N, --steps N   how long (90 epochs)
  --batch-size N          images of a step and worker (64)
  --lr RATE               learning rate (0.1), as --lr-schedule says
  --checkpoint-dir DIR    save here, and go on from there
  --precision TYPE        fp32, bf16 or fp16
  --device TYPE           auto, cpu or cuda
  --workers N             threads that prepare images (1)
  --metrics FILE          losses and times as JSON lines; --tensorboard DIR
  -c, --config FILE       options from a TOML file

train --help shows every option.)";
}

std::string full_help(const CLI::App& app, std::size_t columns) {
  std::string text = command_line::wrapped("usage: train [options]\n", 0, columns);
  text += "\n" + command_line::wrapped(app.get_description(), 0, columns);
  text += "\n" + command_line::wrapped(
                     "Options may be written with dashes or underscores, as --x=v or --x v, and "
                     "abbreviated; the last one given counts. What is usual stands in brackets.",
                     0, columns);
  std::string group;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group() != group) {
      group = option->get_group();
      text += "\n" + group + "\n";
    }
    text += option_text(*option, columns);
  }
  text.pop_back();  // Whoever prints it ends the line.
  return text;
}

}  // namespace ddprun::trainer
