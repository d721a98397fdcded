// Random and mutated command lines and environments: the parser accepts or explains, and nothing
// else. Seeds are fixed, so a failure comes back.
#include <algorithm>
#include <limits>
#include <random>

#include "launcher/options/arguments.h"
#include "launcher/options/table.h"
#include "launcher/options/values.h"
#include "tests/launcher/options/options_properties.h"
#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using namespace ddprun::testing;

namespace {

const std::string program = "/bin/true";

// Values that mean something to one option or another, whole or in part, and some that mean
// nothing.
const Words& values() {
  static const Words words = {"0",
                              "1",
                              "2",
                              "3",
                              "-1",
                              "8",
                              "65535",
                              "65536",
                              "2147483647",
                              "2147483648",
                              "0.5",
                              "1e9",
                              "nan",
                              "inf",
                              "-inf",
                              "0x10",
                              " 4",
                              "4 ",
                              "",
                              " ",
                              "1:2",
                              "2:1",
                              "1:2:3",
                              ":",
                              "0:3,1:1",
                              "0-3:1,12:3",
                              "3-1",
                              "0-65536",
                              "0,4-6",
                              "auto",
                              "cpu",
                              "gpu",
                              "xpu",
                              "static",
                              "c10d",
                              "etcd",
                              "etcd-v2",
                              "localhost",
                              "localhost:0",
                              "node0:29500",
                              "[::1]:29400",
                              "[::1",
                              "::1",
                              "a:b",
                              "127.0.0.1",
                              "join_timeout=5",
                              "join_timeout=5,last_call_timeout=0",
                              "'timeout=1'",
                              "is_host=1",
                              "keep_alive_interval=2,heartbeat_timeout=1",
                              "a=",
                              "=b",
                              ",",
                              "spawn",
                              "fork",
                              "null",
                              "default",
                              "SIGTERM,SIGINT",
                              "sigusr1",
                              "9",
                              "/dev/null",
                              "/tmp",
                              "/bin/true",
                              "[rank${rank}]: ",
                              "${",
                              "$",
                              "$$local_rank",
                              "--",
                              "-",
                              "-m",
                              "-r3",
                              "--help",
                              "--version",
                              std::string("a\0b", 3),
                              "\x01",
                              "\xff\xfe",
                              "\xe2\x82\xac",
                              std::string(300, '9'),
                              std::string(300, 'a'),
                              "node",
                              "exclusive"};
  return words;
}

std::string dashed(const std::string& name) { return std::string("--").append(name); }

class CommandLines {
 public:
  explicit CommandLines(std::uint32_t seed) : random_(seed) {}

  // Options, usually a program, arguments; then perhaps some damage.
  Words next() {
    Words words;
    for (std::size_t left = below(5); left > 0; --left) add_option(words);
    if (below(8) != 0) words.push_back(below(8) == 0 ? value() : program);
    for (std::size_t left = below(4); left > 0; --left) {
      if (below(2) == 0) {
        words.push_back(value());
      } else {
        add_option(words);
      }
    }
    for (std::size_t left = below(3); left > 0 && !words.empty(); --left) damage(words);
    return words;
  }

  Variables variables() {
    Variables result = {{"PATH", "/usr/bin:/bin"}};
    for (std::size_t left = below(4); left > 0; --left) {
      const OptionRow& row = any_row();
      if (!row.variable().empty()) result[row.variable()] = value();
    }
    for (const char* name :
         {"CUDA_VISIBLE_DEVICES", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
          "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "PYTHON_EXEC", "VIRTUAL_ENV"}) {
      if (below(16) == 0) result[name] = value();
    }
    return result;
  }

  // A value, perhaps with a scratch.
  std::string value() {
    std::string text = values()[below(values().size())];
    if (below(4) == 0) scratch(text);
    return text;
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  const OptionRow& any_row() { return option_table()[below(option_table().size())]; }

  void add_option(Words& words) {
    const OptionRow& row = any_row();
    if (row.letter != 0 && below(2) == 0) {
      std::string word = "-?";
      word[1] = row.letter;
      if (below(2) == 0) word.append(value());
      words.push_back(word);
      return;
    }
    std::string name = row.name;
    for (char& letter : name) {
      if (letter == '-' && below(2) == 0) letter = '_';
    }
    if (below(4) == 0) name.resize(1 + below(name.size()));
    words.push_back(dashed(name));
    const bool with_value = row.is_flag() ? below(8) == 0 : below(16) != 0;
    if (!with_value) return;
    if (below(2) == 0) {
      words.back().append("=").append(value());
    } else {
      words.push_back(value());
    }
  }

  void scratch(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    switch (below(3)) {
      case 0:
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      case 1:
        if (at < text.size()) text.erase(at, 1);
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
    }
  }

  void damage(Words& words) {
    const std::size_t at = below(words.size());
    switch (below(4)) {
      case 0:
        words.erase(words.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 1:
        std::swap(words[at], words[below(words.size())]);
        break;
      case 2:
        words.push_back(Words(words)[at]);
        break;
      default:
        scratch(words[at]);
    }
  }

  std::mt19937 random_;
};

std::string shown(const Words& words, const Variables& variables) {
  std::string text = "ddprun";
  for (const std::string& word : words) text += " [" + word + "]";
  for (const auto& [name, value] : variables) text += "\n" + name + "=[" + value + "]";
  return text;
}

// How many of `count` command lines were accepted; reports the first breach.
int run_random(std::uint32_t seed, int count, bool with_variables) {
  CommandLines lines(seed);
  int accepted = 0;
  for (int i = 0; i < count; ++i) {
    const Words words = lines.next();
    const Variables variables =
        with_variables ? lines.variables() : Variables{{"PATH", "/usr/bin:/bin"}};
    try {
      accepted += accepted_or_refused(words, variables) ? 1 : 0;
    } catch (const std::exception& error) {
      FAIL("case " << i << ": " << error.what() << "\n" << shown(words, variables));
    }
  }
  return accepted;
}

// What the parser makes of one option; its table name and the given value.
std::string meaning_of(const Words& words) {
  try {
    const SplitArguments split = split_arguments(words);
    if (split.options.size() != 1) return "not one option";
    return split.options.begin()->first + " = " + split.options.begin()->second.value;
  } catch (const UsageExit& exit) {
    return exit.what();
  }
}

// The option `name` in full, with a value if it takes one.
Words given(const std::string& name, const OptionRow& row) {
  return {dashed(name).append(row.is_flag() ? "" : "=7"), program};
}

std::string expected_meaning(const OptionRow& row) { return meaning_of(given(row.name, row)); }

int workers_of(const std::string& value) {
  return parse_launch({"--nproc-per-node=" + value, program}, {}).nproc_per_node;
}
bool refused(const Words& options) {
  Words words = options;
  words.push_back(program);
  return !accepted_or_refused(words, {});
}

}  // namespace

TEST_CASE("every random command line is accepted or explained", "[options]") {
  const int accepted = run_random(1, 100'000, /*with_variables=*/false);
  CHECK(accepted > 5'000);  // Or the generator makes nothing but nonsense.
  CHECK(accepted < 95'000);
}

TEST_CASE("every random environment is accepted or explained", "[options]") {
  const int accepted = run_random(2, 100'000, /*with_variables=*/true);
  CHECK(accepted > 5'000);
  CHECK(accepted < 95'000);
}

TEST_CASE("whatever follows the program is passed on untouched", "[options]") {
  CommandLines lines(3);
  for (int i = 0; i < 20'000; ++i) {
    const Words arguments = lines.next();
    Words words = {"--nproc-per-node", "2", program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const LaunchOptions options = parse_launch(words, {});
    if (options.nproc_per_node != 2 || options.program != Words(words.begin() + 2, words.end())) {
      FAIL(shown(words, {}));
    }
  }
}

TEST_CASE("the command line wins over PET variables for every option", "[options]") {
  for (const OptionRow& row : option_table()) {
    if (row.variable().empty()) continue;
    INFO(row.name);
    const auto with_variable = [&](const Words& words) {
      SplitArguments split = split_arguments(words);
      add_variables(split, [&](const std::string& name) {
        return name == row.variable() ? std::optional<std::string>("0") : std::nullopt;
      });
      const GivenOption* found = split.find(row.name);
      return found == nullptr ? std::string("nothing") : found->value;
    };
    CHECK(with_variable({program}) == "0");
    CHECK(with_variable(given(row.name, row)) == (row.is_flag() ? "1" : "7"));
    CHECK(split_arguments({program}).find(row.name) == nullptr);
  }
}

TEST_CASE("dashes and underscores mean the same in every mixture", "[options]") {
  for (const OptionRow& row : option_table()) {
    const auto separators = std::count(row.name.begin(), row.name.end(), '-');
    for (unsigned mixture = 0; mixture < 1u << separators; ++mixture) {
      std::string name = row.name;
      unsigned bit = 0;
      for (char& letter : name) {
        if (letter == '-' && ((mixture >> bit++) & 1u) != 0) letter = '_';
      }
      INFO(name);
      const std::string meaning = meaning_of(given(name, row));
      // Messages about refused options repeat the word as it was given.
      CHECK(meaning == expected_meaning(row));
    }
  }
}

TEST_CASE("every start of an option that fits one option is that option", "[options]") {
  for (const OptionRow& row : option_table()) {
    for (std::size_t length = 1; length < row.name.size(); ++length) {
      const std::string start = row.name.substr(0, length);
      std::vector<const OptionRow*> fitting;
      const OptionRow* exact = nullptr;
      for (const OptionRow& other : option_table()) {
        if (other.name == start) exact = &other;
        if (other.name.rfind(start, 0) == 0) fitting.push_back(&other);
      }
      const auto theirs = std::count_if(fitting.begin(), fitting.end(),
                                        [](const OptionRow* other) { return other->in_torchrun; });
      INFO(start);
      const std::string meaning = meaning_of(given(start, row));
      if (exact != nullptr) {
        CHECK(meaning == meaning_of(given(exact->name, row)));
      } else if (fitting.size() == 1 || (theirs == 1 && row.in_torchrun)) {
        CHECK(meaning == expected_meaning(row));
      } else if (theirs != 1) {
        CHECK(meaning.find("ambiguous") != std::string::npos);
        CHECK(meaning.find(dashed(row.name)) != std::string::npos);
      }
    }
  }
}

TEST_CASE("values are accepted up to their limits and not beyond", "[options]") {
  const std::string most = std::to_string(std::numeric_limits<int>::max());
  const std::string more = "2147483648";
  CHECK(workers_of("1") == 1);
  CHECK(workers_of("4096") == 4'096);
  CHECK(parse_launch({"--max-restarts=" + most, program}, {}).max_restarts ==
        std::numeric_limits<int>::max());
  CHECK(parse_launch({"--nnodes=65536", program}, {}).nnodes_max == 65'536);
  CHECK(parse_launch({"--nnodes=65536", "--node-rank=65535", program}, {}).node_rank == 65'535);
  CHECK(parse_launch({"--master-port=65535", program}, {}).endpoint_port == 65'535);
  CHECK(parse_launch({"--shutdown-timeout=10000000", program}, {}).shutdown_timeout.count() ==
        10'000'000'000);
  CHECK(parse_launch({"--local-ranks-filter=0-4096", program}, {}).local_ranks_filter.size() ==
        4'097);
  for (const char* option :
       {"--nproc-per-node=0", "--nproc-per-node=4097", "--nnodes=0", "--nnodes=65537",
        "--nnodes=1:65537", "--node-rank=1", "--node-rank=-1", "--max-restarts=-1",
        "--master-port=65536", "--master-port=-1", "--shutdown-timeout=10000001",
        "--shutdown-timeout=inf", "--local-ranks-filter=4097", "--redirects=4",
        "--rdzv-conf=join_timeout=10000001", "--rdzv-conf=keep_alive_max_attempt=1001"}) {
    INFO(option);
    CHECK(refused({option}));
  }
  for (const char* option :
       {"--nproc-per-node=", "--nnodes=", "--max-restarts=", "--master-port="}) {
    INFO(option);
    CHECK(refused({option + more}));
    CHECK(refused({option + std::string("99999999999999999999")}));
  }
}
