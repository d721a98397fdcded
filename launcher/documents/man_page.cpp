// The page in the language of man(7); exit statuses are those of docs/failures.md, which a page of
// its own cannot point to.
#include "launcher/documents/man_page.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "command_line/man_text.h"
#include "launcher/doctor/doctor_options.h"
#include "launcher/options/help.h"
#include "launcher/options/subcommands.h"
#include "launcher/options/table.h"
#include "launcher/watch/watch_command.h"
#include "rendezvous/control/first_cause.h"

namespace ddprun::launcher {
namespace {

const auto escaped = command_line::man_escaped;
const auto bold = command_line::man_bold;
const auto italic = command_line::man_italic;
const auto section = command_line::man_section;
const auto item = command_line::man_item;

std::string option(const OptionRow& row) {
  std::string head;
  if (row.letter != 0) head = bold(fmt::format("-{}", row.letter)) + ", ";
  head += bold(fmt::format("--{}", row.name));
  if (!row.is_flag()) head.append(" ").append(italic(row.value));
  std::string text = escaped(row.meaning);
  if (!row.fallback.empty()) text += fmt::format("\nDefault: {}.", escaped(row.fallback));
  return item(head, text);
}

std::string options_of(const std::vector<WatchOptionRow>& options) {
  std::string text;
  for (const WatchOptionRow& option : options) {
    std::string head = option.letter == 0 ? "" : bold(fmt::format("-{}", option.letter)) + ", ";
    head += bold(fmt::format("--{}", option.name));
    if (*option.value != '\0') head.append(" ").append(italic(option.value));
    text += ".RS\n" + item(head, escaped(option.meaning)) + ".RE\n";
  }
  return text;
}

// Of a subcommand that has some of its own.
std::string options_of(const std::string& subcommand) {
  if (subcommand == "doctor") return options_of(doctor_option_table());
  for (const WatchCommandRow& command : watch_table()) {
    if (subcommand == command.name) return options_of(command.options);
  }
  return "";
}

std::string jobs_meant() {
  return ".PP\n" +
         escaped(
             "JOB is a launcher's pid, a --rdzv-id or a program's name; without it all of the "
             "user's jobs on this host are meant. What looks at jobs ends with 0; with 1 if "
             "there is no such job; with 2 if its words are wrong.") +
         "\n";
}

std::string exit_statuses() {
  namespace status = rendezvous::exit_status;
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"0", "All workers on all nodes ended with 0."},
      {std::to_string(status::usage), "The command line is wrong."},
      {std::to_string(status::unfit), "This node's --node-check says that it is not fit."},
      {std::to_string(status::internal),
       "ddprun could not go on: the port is taken, a folder cannot be written."},
      {std::to_string(status::rendezvous_timeout),
       "Nodes were missing at the start when the join timeout passed."},
      {std::to_string(status::coordinator_lost), "The connection to the endpoint broke."},
      {std::to_string(status::refused), "The endpoint refused: another secret, job or version."},
      {std::to_string(status::node_lost), "A node was lost and no restart was left."},
      {std::to_string(status::preempted),
       "Stopped by SIGTERM, or lost nodes did not come back; queue the job again."},
      {"other", "That of the worker that failed first: its exit code, or 128 + n for signal n."},
  };
  std::string text;
  for (const auto& [number, meaning] : rows) text += item(bold(number), escaped(meaning));
  return text;
}

std::string environment() {
  return item(bold("PET_NAME"),
              escaped("Sets the option of that name, with underscores for dashes, when the command "
                      "line does not; 0 or 1 for a switch.")) +
         item(bold("PYTHON_EXEC") + ", " + bold("VIRTUAL_ENV") + ", " + bold("PATH"),
              "Which Python runs a script, and where programs are found.") +
         item(bold("SLURM_STEP_NUM_NODES") + ", " + bold("OMPI_COMM_WORLD_SIZE") + " ...",
              escaped(
                  "What the platform that started ddprun says of the job; ddprun env shows it.")) +
         item(
             bold("CUDA_VISIBLE_DEVICES"),
             escaped("Counted for --nproc-per-node gpu, divided by --virtual-local-rank, and asked "
                     "by --numa-binding.")) +
         item(bold("DDPRUN_SECRET_FILE") + ", " + bold("DDPRUN_AUTH"),
              escaped("Defaults of --secret-file and --auth, for a machine or a cluster.")) +
         item(bold("DDPRUN_RUN_DIR"),
              escaped("The folder with the sockets of jobs that ddprun status finds; else below "
                      "XDG_RUNTIME_DIR, TMPDIR or /tmp.")) +
         item(bold("DDPRUN_ENCRYPT_GRADIENTS"),
              escaped("1: as --encrypt-gradients. Also read by workers without ddprun.")) +
         item(bold("GLIBC_TUNABLES"),
              escaped(
                  "Set to glibc.malloc.hugetlb=1 for the workers when it is not set: their malloc "
                  "asks for huge pages where the kernel leaves that to programs. Set it, if only "
                  "to nothing, and workers have what you set.")) +
         item(bold("OMP_NUM_THREADS"),
              escaped("Set to 1 for the workers when there are several and it is not set; see "
                      "--omp-threads.")) +
         item(bold("TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
              escaped("1: rank 0 of the workers opens the store itself (one node, c10d).")) +
         ".PP\nWorkers get RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and torchrun's\n"
         "other variables.\n";
}

}  // namespace

std::string man_page() {
  std::string text =
      ".\\\" Made from the table of options; scripts/update_docs writes it.\n" +
      command_line::man_head("DDPRUN", "2026-11-21", name_and_version()) + section("NAME") +
      "ddprun \\- start and watch the workers of a data\\-parallel job\n" + section("SYNOPSIS") +
      bold("ddprun") + " [" + italic("options") + "] [" + bold("--") + "] " + italic("program") +
      " [" + italic("arguments of the program") + "]\n" + section("DESCRIPTION") +
      "Starts the workers of a job on this node of it, gives them torchrun's environment, and\n"
      "stops or restarts the whole job together when something breaks. A native replacement\n"
      "for torchrun.\n" +
      section("EXAMPLES");
  for (const UsageExample& example : usage_examples()) {
    text += item(bold(example.command), escaped(example.meaning));
  }
  text += section("OPTIONS");
  const char* begin = "";
  for (const std::string& rule : usage_rules()) {
    text += fmt::format("{}{}\n", begin, escaped(rule));
    begin = ".PP\n";
  }
  for (OptionGroup group : option_groups()) {
    text += fmt::format(".SS {}\n", escaped(group_title(group)));
    for (const OptionRow& row : option_table()) {
      if (row.group == group) text += option(row);
    }
  }
  text += section("WITHOUT A PROGRAM");
  for (const SubcommandRow& row : subcommand_table()) {
    text += item(bold("ddprun " + row.name) + " " + italic(row.usage), escaped(row.meaning));
    text += options_of(row.name);
  }
  text += jobs_meant();
  return text + section("ENVIRONMENT") + environment() + section("EXIT STATUS") + exit_statuses();
}

}  // namespace ddprun::launcher
