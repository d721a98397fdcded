// What helps people at a terminal, used as they use it: help, man page, completion, installation.
#include <filesystem>
#include <fstream>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"

using namespace ddprun::testing;

namespace {

const std::string tree = DDPRUN_SOURCE_DIR;

bool is_installed(const std::string& program) {
  return run(shell("command -v " + program), 20s).status == 0;
}

// What bash would offer for the last of `words` (the first is ddprun), in an empty folder with the
// file "train.py" and the folder "logs". A line each; "[...]" are changes of what bash does itself.
std::string bash_offers(const std::string& words, const std::string& program = "ddprun") {
  const TemporaryFolder folder;
  std::ofstream(folder / "train.py") << "";
  std::filesystem::create_directory(folder / "logs");
  const auto result = run(
      {"bash", "-c",
       "cd \"$1\" && compopt() { echo \"[$*]\"; } && . \"$2\" && . \"$3\" || exit 1; "
       "COMP_WORDS=(" +
           words +
           "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
           "_" +
           program + "; ((${#COMPREPLY[@]})) && printf '%s\\n' \"${COMPREPLY[@]}\"; :",
       "bash", folder.path(), tree + "/completions/ddprun.bash", tree + "/completions/train.bash"},
      20s);
  INFO(words << ":\n" << result.output);
  CHECK(result.status == 0);
  return result.output;
}

}  // namespace

TEST_CASE("bash completes options in both spellings") {
  CHECK(bash_offers("ddprun --nproc") == "--nproc-per-node\n");
  CHECK(bash_offers("ddprun --nproc_p") == "--nproc-per-node\n");
  CHECK(bash_offers("ddprun --standalone --tee 3 --numa") == "--numa-binding\n");
  CHECK(contains(bash_offers("ddprun -"), "\n-t\n"));
  CHECK(bash_offers("ddprun --no-such") == "");
}

TEST_CASE("bash completes the values of options") {
  CHECK(bash_offers("ddprun --rdzv-backend ''") == "static\nc10d\netcd\n");
  CHECK(bash_offers("ddprun --rdzv_backend = c") == "c10d\n");  // Bash ends a word at "=".
  CHECK(bash_offers("ddprun --rdzv-backend=c") == "--rdzv-backend=c10d\n");  // Or does not.
  CHECK(bash_offers("ddprun --nproc-per-node =") == "auto\ncpu\ngpu\n");
  CHECK(bash_offers("ddprun --numa-binding ''") == "node\nsocket\nexclusive\ncore-complex\n");
  CHECK(bash_offers("ddprun -t ''") == "0\n1\n2\n3\n");
  CHECK(bash_offers("ddprun --log-dir ''") == "[-o filenames]\nlogs\n");
  CHECK(bash_offers("ddprun --max-restarts ''") == "[+o default +o bashdefault]\n");
}

TEST_CASE("bash completes the program, and leaves the rest to itself") {
  CHECK(bash_offers("ddprun tra").find("[-o filenames]\ntrain.py\n") == 0);
  CHECK(bash_offers("ddprun --nnodes 2 : 4 -t 3 ./tr") == "[-o filenames]\n./train.py\n");
  CHECK(bash_offers("ddprun --nnodes = 2 --mod ./tr") == "[-o filenames]\n./train.py\n");
  CHECK(bash_offers("ddprun --standalone -- ./tr") == "[-o filenames]\n./train.py\n");
  CHECK(bash_offers("ddprun train.py --n") == "");
  CHECK(bash_offers("ddprun --nproc 2 train.py --rdzv-backend ''") == "");
  CHECK(bash_offers("ddprun -- train.py -") == "");
}

TEST_CASE("17.1: bash completes train's options, also behind ddprun") {
  const std::string no_files = "[+o default +o bashdefault]\n";
  CHECK(bash_offers("train --batch_s", "train") == no_files + "--batch-size\n");
  CHECK(bash_offers("train --precision ''", "train") == "bf16\nfp16\nfp32\n");
  CHECK(bash_offers("train --precision = f", "train") == "fp16\nfp32\n");
  CHECK(bash_offers("train --precision=f", "train") == "--precision=fp16\n--precision=fp32\n");
  CHECK(bash_offers("train --checkpoint-dir ''", "train") == "[-o filenames]\nlogs\n");
  CHECK(bash_offers("train --epochs ''", "train") == no_files);
  CHECK(bash_offers("train --model resnet15", "train") == "resnet152\n");

  CHECK(bash_offers("ddprun --nproc-per-node = 2 -- ./train --batch-s") ==
        no_files + "--batch-size\n");
  CHECK(bash_offers("ddprun --nproc-per-node 2 train --precision b") == "bf16\n");
}

TEST_CASE("bash completes the options of a command, and files behind plot") {
  CHECK(bash_offers("ddprun status --js") == "--json\n");
  CHECK(bash_offers("ddprun plot -") == "-h\n-o\n--output\n--help\n");
  CHECK(bash_offers("ddprun plot train.py --ou") == "--output\n");
  CHECK(bash_offers("ddprun plot --nproc") == "");
  // None of these: bash itself offers files then.
  CHECK(bash_offers("ddprun plot ''") == "");
  CHECK(bash_offers("ddprun plot -o tra") == "[-o filenames]\ntrain.py\n");
  CHECK(contains(bash_offers("ddprun -- plot"), "[-o filenames]"));  // A program.
}

TEST_CASE("bash completes the values of a command's options") {
  CHECK(bash_offers("ddprun doctor --color ''") == "auto\nalways\nnever\n");
  CHECK(bash_offers("ddprun doctor --color = n") == "never\n");
  CHECK(bash_offers("ddprun status --endpoint host-a --auth s") == "secret\n");
  CHECK(bash_offers("ddprun doctor --write-hostfile tra") == "[-o filenames]\ntrain.py\n");
  CHECK(bash_offers("ddprun logs --rank ''") == "[+o default +o bashdefault]\n");
  CHECK(contains(bash_offers("ddprun logs -f ''"), "\n--rank\n"));
}

TEST_CASE("bash knows both names of the program") {
  const auto result =
      run({"bash", "-c", ". \"$1\" && complete -p ddprun && complete -p ddprun-launch", "bash",
           tree + "/completions/ddprun.bash"},
          20s);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "-F _ddprun ddprun-launch"));
}

TEST_CASE("zsh understands its completion") {
  if (!is_installed("zsh")) DDPRUN_SKIP("no zsh here");
  // A terminal of its own, in which Tab is pressed twice.
  const TemporaryFolder folder;
  const std::string script = folder / "press.zsh";
  std::ofstream(script) << R"(zmodload zsh/zpty
zpty shell "PS1= ZDOTDIR=$1 zsh -f -i"
zpty -w shell "fpath=($2/completions \$fpath); autoload -Uz compinit; compinit -u -d $1/dump"
zpty -w shell "LISTMAX=1000; unsetopt prompt_cr prompt_sp; print rea''dy"
zpty -r -m shell out '*ready*'
zpty -w -n shell $'ddprun --numa-bind\t'
zpty -r -m shell out '*--numa-binding=*' && print named
zpty -w -n shell $'ex\t'
zpty -r -m shell out '*exclusive*' && print valued
zpty -w -n shell $'\x15ddprun plot --ou\t'
zpty -r -m shell out '*--output=*' && print of plot
zpty -w -n shell $'\x15ddprun doctor --color alw\t'
zpty -r -m shell out '*always*' && print of doctor
zpty -w -n shell $'\x15ddprun env --numa-bind\t'
zpty -r -m shell out '*--numa-binding=*' && print of env
zpty -d shell
)";
  const auto result = run({"zsh", "-f", script, folder.path(), tree}, 30s, {{"TERM", "dumb"}});

  INFO(result.output);
  CHECK(contains(result.output, "named"));
  CHECK(contains(result.output, "valued"));
  CHECK(contains(result.output, "of plot"));
  CHECK(contains(result.output, "of doctor"));
  CHECK(contains(result.output, "of env"));
}

TEST_CASE("the man page is read without a warning") {
  if (!is_installed("groff")) DDPRUN_SKIP("no groff here");
  const std::vector<std::string> groff = {"groff", "-man", "-ww", "-Tascii", "-rLL=80n", "-P-cbou"};

  for (const char* name : {"/docs/ddprun.1", "/docs/train.1"}) {
    CHECK(run(groff + std::vector<std::string>{"-z", tree + name}, 20s).output == "");
  }
  const auto page = run(groff + std::vector<std::string>{tree + "/docs/ddprun.1"}, 20s);

  CHECK(contains(page.output, "ddprun --nproc-per-node 2 ./train --epochs 10"));
}

TEST_CASE("an installed ddprun has its second name, man page and completions") {
  if (!is_installed("cmake")) DDPRUN_SKIP("no cmake here");
  const TemporaryFolder folder;
  const auto result = run({"cmake", "--install", std::string(DDPRUN_BIN_DIR) + "/..", "--prefix",
                           folder.path(), "--component", "ddprun"},
                          60s);

  INFO(result.output);
  REQUIRE(result.status == 0);
  for (const char* file :
       {"share/man/man1/ddprun.1", "share/man/man1/ddprun-launch.1",
        "share/bash-completion/completions/ddprun",
        "share/bash-completion/completions/ddprun-launch", "share/zsh/site-functions/_ddprun",
        "share/fish/vendor_completions.d/ddprun.fish",
        "share/fish/vendor_completions.d/ddprun-launch.fish"}) {
    INFO(file);
    CHECK(std::filesystem::file_size(folder / file) > 0);
  }
  const auto job = run({folder / "bin/ddprun-launch", "/bin/echo", "got"}, 20s);
  CHECK(contains(job.output, "--local-rank=0 got\n"));
}

TEST_CASE("fish completes options, their values, commands and the program's own") {
  if (!is_installed("fish")) DDPRUN_SKIP("no fish here");
  const TemporaryFolder folder;
  std::ofstream(folder / "train.py") << "\n";
  std::filesystem::create_directory(folder / "logs");
  // Each line of the script, then what is offered behind it, without the descriptions.
  const std::string script = R"(cd $argv[1]
for program in ddprun train
    source $argv[2]/completions/$program.fish
end
for line in $argv[3..]
    echo "[$line]" (complete -C $line | string replace -r '\t.*' '')
end)";
  const std::vector<std::pair<std::string, std::string>> offered = {
      {"ddprun --numa-bind", "--numa-binding"},
      {"ddprun --numa-binding ex", "exclusive"},
      {"ddprun --numa_bind ex", "exclusive"},
      {"ddprun --nnodes ", ""},
      {"ddprun --nnod ", ""},
      {"ddprun --log-dir ", "logs/"},
      {"ddprun --nnodes 2 train.p", "train.py"},
      {"ddprun --nnodes 2 train.py --n", ""},
      {"ddprun-launch --numa-bind", "--numa-binding"},
      {"ddprun --nnodes 2 ./train --precision f", "fp16 fp32"},
      {"ddprun --nproc-per-node=2 -- train --batch-s", "--batch-size"},
      {"ddprun status --js", "--json"},
      {"ddprun status ", ""},
      {"ddprun doctor --color al", "always"},
      {"ddprun plot --ou", "--output"},
      {"ddprun plot train.p", "train.py"},
      {"ddprun -- plot --ou", ""},  // A program.
      {"ddprun env --numa-bind", "--numa-binding"},
      {"train --model resnet15", "resnet152"},
      {"train --checkpoint-dir ", "logs/"},
      {"train train.p", ""}};
  std::vector<std::string> command = {"fish", "--no-config", "-c", script, folder.path(), tree};
  std::string wanted;
  for (const auto& [line, offer] : offered) {
    command.push_back(line);
    wanted += "[" + line + "]" + (offer.empty() ? "" : " " + offer) + "\n";
  }
  const auto result = run(command, 60s, {{"HOME", folder.path()}});
  CHECK(result.output == wanted);
}
