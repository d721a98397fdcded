// The options. See table.h.
#include "launcher/options/table.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace ddprun::launcher {

std::string OptionRow::variable() const {
  if (group == OptionGroup::Help || group == OptionGroup::Refused) return "";
  std::string result = "PET_";
  for (char letter_of_name : name) {
    result += letter_of_name == '-' ? '_' : static_cast<char>(letter_of_name & ~0x20);
  }
  return result;
}

std::string OptionRow::signature() const {
  std::string text;
  if (letter != 0) text.append("-").append(1, letter).append(", ");
  text.append("--").append(name);
  if (!is_flag()) text.append(" ").append(value);
  return text;
}

std::vector<std::string> OptionRow::choices() const {
  if (value == "STD") return {"0", "1", "2", "3"};
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= value.size();) {
    const std::size_t end = std::min(value.find('|', begin), value.size());
    const std::string word = value.substr(begin, end - begin);
    const bool typed = std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-' || c == '_';
    });
    if (typed && !word.empty()) words.push_back(word);
    begin = end + 1;
  }
  return words;
}

const std::vector<OptionRow>& option_table() {
  using enum OptionGroup;
  static const std::vector<OptionRow> table = {
      // The job's shape.
      {"nnodes", 0, "N|MIN:MAX", "1", Job, true,
       "Nodes of the job. MIN:MAX is elastic and needs --rdzv-backend c10d; static takes MAX."},
      {"nproc-per-node", 0, "N|auto|cpu|gpu|MIN:MAX", "1", Job, true,
       "Workers on this node. gpu: one per visible GPU; cpu: one per allowed CPU; auto: gpu if "
       "there is one, else cpu. MIN:MAX starts MAX, and goes on with those that are left, if they "
       "can park and are MIN, until the others are replaced."},
      {"node-rank", 0, "N", "0", Job, true,
       "Rank of this node, from 0. With c10d optional: nodes are ranked as they join."},
      {"role", 0, "NAME", "default", Job, true,
       "Role of this node's workers: ROLE_NAME, and the start of each console prefix."},
      {"virtual-local-rank", 0, "", "off", Job, true,
       "Every worker gets LOCAL_RANK=0 and sees only its own device in CUDA_VISIBLE_DEVICES, and "
       "in HIP_VISIBLE_DEVICES where that is set."},
      {"omp-threads", 0, "auto|N", "1 when there are several workers", Job, false,
       "OMP_NUM_THREADS of each worker. auto: the physical cores that it may use, divided by the "
       "workers that share them."},
      {"numa-binding", 0, "node|socket|exclusive|core-complex", "", Job, true,
       "Binds each worker to CPUs near its GPU (without GPUs: to an even share): all of the NUMA "
       "node, all of the socket, its own part of the node's cores, or one group that shares a "
       "cache. Where that cannot be, it says so and runs unbound."},

      // Several hosts by one command, over ssh (docs/ssh.md).
      {"hosts", 'H', "HOST[:N],...", "", Hosts, false,
       "Start the whole job from here: a node on each of these hosts, over ssh, with N workers "
       "(else --nproc-per-node). Also USER@HOST and gpu[01-16]:8. The first is node 0; localhost "
       "needs no ssh."},
      {"hostfile", 0, "FILE", "", Hosts, false,
       "The same from a file: HOST, HOST:N or HOST slots=N on each line, # begins a comment; or "
       "mlx.launch's JSON."},
      {"export", 'x', "NAME[=VALUE]|PATTERN", "none", Hosts, false,
       "Variables that go along to the other hosts, as in -x 'NCCL_*' -x DEBUG=1. May be given "
       "again."},
      {"ssh-options", 0, "WORDS", "", Hosts, false,
       "Options of ssh, as in '-p 2222 -i KEY'. They win over ddprun's own. May be given again."},
      {"copy-self", 0, "", "off", Hosts, false,
       "Send ddprun to hosts that have none; the copy goes when the job ends."},

      // Where the nodes meet.
      {"standalone", 0, "", "off", Endpoint, true,
       "One node, a free port on 127.0.0.1 and a random id: never collides with another job."},
      {"master-addr", 0, "HOST", "127.0.0.1", Endpoint, true,
       "Host of node 0, where the job's one port is. IPv6 with or without brackets."},
      {"master-port", 0, "PORT", "29500; one node: a free port", Endpoint, true,
       "Port there. 0 picks a free one (one node only)."},
      {"rdzv-backend", 0, "static|c10d|etcd", "static", Endpoint, true,
       "static: exactly --nnodes nodes with given ranks. c10d: nodes may come and go between MIN "
       "and MAX. etcd, or etcd-v2: so, and --rdzv-endpoint is etcd's (2379), where the nodes find "
       "the one that coordinates, and which says who goes on when they lose each other; protocol, "
       "cacert, cert, key in --rdzv-conf."},
      {"rdzv-endpoint", 0, "HOST[:PORT]", "the master address; port 29400 with c10d", Endpoint,
       true,
       "Where the nodes meet; wins over --master-addr and --master-port. IPv6 as [ADDRESS]:PORT."},
      {"rdzv-id", 0, "ID", "none", Endpoint, true,
       "Name of the job: nodes with another one are turned away. Empty: a random one."},
      {"rdzv-conf", 0, "KEY=VALUE,...", "", Endpoint, true,
       "join_timeout (600), last_call_timeout (30; where another node may take over at least "
       "12, with --tie-breaker at least 53), heartbeat_timeout (5), keep_alive_interval (1), "
       "keep_alive_max_attempt, start_timeout (30), is_host, takeover (c10d: true; static: false). "
       "Seconds. timeout means join_timeout."},
      {"tie-breaker", 0, "FILE|URL,...", "", Endpoint, false,
       "Who goes on when nodes lose each other. FILE on a file system that all nodes share: of two "
       "halves the one that puts its name there first. URL of etcd, as http://HOST:2379: any part, "
       "the first to do so; CA and certificates in ETCDCTL_CACERT, _CERT, _KEY. c10d, or "
       "takeover=true."},
      {"secret-file", 0, "FILE", "~/.config/ddprun/secret, made at first use", Endpoint, false,
       "Secret that the nodes of a job prove to each other, equal on all of them, where another "
       "host "
       "could join. - is stdin. Also DDPRUN_SECRET_FILE."},
      {"auth", 0, "secret|none", "secret, unless the endpoint is a loopback address", Endpoint,
       false,
       "none: nodes join without a secret, and so does whoever reaches the port. secret: also at a "
       "loopback address, as through a tunnel. Also DDPRUN_AUTH."},
      {"store-allow", 0, "ADDRESS|NETWORK,...", "the job's own hosts", Endpoint, false,
       "Who else may use the store, such as 10.1.0.0/16 for workers in containers with addresses "
       "of "
       "their own."},
      {"store-auth", 0, "", "off", Endpoint, false,
       "The store serves only programs that prove the job's secret: those on ddprun's C++ library, "
       "and no Python ones."},
      {"encrypt-gradients", 0, "", "off", Endpoint, false,
       "What workers on ddprun's library send each other over TCP is encrypted, with keys made of "
       "the job's secret. Not over NCCL or MPI, which have connections of their own. Also "
       "DDPRUN_ENCRYPT_GRADIENTS=1."},
      {"local-addr", 0, "ADDRESS", "found out", Endpoint, true,
       "Address under which the other nodes reach this one."},

      // What to run.
      {"module", 'm', "", "off", Program, true, "Run the program as python -m PROGRAM."},
      {"no-python", 0, "", "off", Program, true,
       "Run the program directly, whatever its name. Needed only for a Python program."},
      {"run-path", 0, "", "off", Program, true,
       "Run the program by Python whatever its name, in a process of its own."},
      {"use-env", 0, "", "on", Program, false,
       "As in torch.distributed.launch: the local rank is only in LOCAL_RANK. Always so, unless "
       "--pass-local-rank is given or the program was started as ddprun-launch."},
      {"pass-local-rank", 0, "", "off", Program, false,
       "As torch.distributed.launch without --use-env: --local-rank=N is the worker's first "
       "argument. The default under the name ddprun-launch."},

      {"dry-run", 0, "", "off", Program, false,
       "Say what would be started, where and with which environment, and where each value comes "
       "from; start nothing."},

      // When something breaks.
      {"max-restarts", 0, "N", "0", Failures, true,
       "How many failures the job survives, counted over all nodes."},
      {"shutdown-timeout", 0, "SECONDS", "30", Failures, false,
       "From asking workers to stop to SIGKILL, on every path. Also "
       "TORCH_ELASTIC_SHUTDOWN_TIMEOUT."},
      {"stall-timeout", 0, "SECONDS|auto|off", "auto", Failures, false,
       "A worker that lives and makes no progress for so long stalls the job: the stacks of all "
       "are told, with who is behind. auto: a limit for each phase, learnt from the run, of 60 s "
       "at least (docs/failures.md)."},
      {"on-stall", 0, "auto|report|fail", "auto", Failures, false,
       "What follows of a stall, besides the report. fail: whoever is behind is killed, and the "
       "attempt ends as by any worker's death. auto: the same where it is known who is behind, and "
       "the others go on in place (docs/failures.md). report: nothing."},
      {"exit-code-map", 0, "NAME=N,...", "none", Failures, false,
       "Other exit statuses for ddprun's own, as in lost=138,preempted=138 for a scheduler that "
       "tries again from 128 on: unfit (69), internal (70), timeout (71), coordinator (72), "
       "refused (73), lost "
       "(74), preempted (75). A worker's own code stays, except 75."},
      {"signals-to-handle", 0, "NAME,...", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", Failures, true,
       "Signals that shut the job down: the first asks the workers to stop; a second SIGINT or "
       "SIGQUIT kills them."},
      {"forward-signals", 0, "NAME,...", "none", Failures, false,
       "Signals that are passed on to this node's workers, such as USR1,USR2; the job goes on."},
      {"stay", 0, "", "off", Failures, false,
       "Go on when the ssh session that started the job is lost. Otherwise the job ends then as by "
       "SIGHUP, unless it was started by nohup or writes to a file."},
      {"node-check", 0, "COMMAND", "none", Failures, false,
       "What a shell runs to know whether this node is fit for the job, before it joins and "
       "between two attempts. 0: it is. Otherwise it leaves with 69, and an elastic job goes on "
       "without. "
       "\"ddprun doctor --brief\" knows lost and worn-out GPUs, and more."},
      {"node-check-timeout", 0, "SECONDS", "30", Failures, false,
       "A --node-check that has not ended after this is killed, and the node counts as unfit."},
      {"spares", 0, "N", "0", Failures, false,
       "Processes of the program that are started ahead and wait for a rank, so that a restart "
       "need "
       "not load libraries: for programs that call wait_for_rank() or do as it does "
       "(docs/failures.md). As many as there are workers replace all of a node."},
      {"spare-timeout", 0, "SECONDS", "600", Failures, false,
       "A spare, or what replaces a lost worker, that has not asked for a rank after this is "
       "killed "
       "and tried again, three times in all; sooner where others took a tenth of the time. 0: it "
       "may take for ever."},
      {"restart-memory", 0, "SIZE", "0", Failures, false,
       "Memory of this node, at most SIZE (500M, 2G), that outlives its workers, for programs that "
       "keep their state there for a restart: train --snapshot-every, which needs twice the size "
       "of "
       "a checkpoint."},
      {"restart-backoff", 0, "SECONDS", "0.5", Failures, false,
       "The first restart comes at once, the second in a row after this time, each further one "
       "after twice as long, up to 30 s, with jitter; one lost node or killed worker in a row does "
       "not count. 0: none waits."},
      {"max-same-failures", 0, "N", "5", Failures, false,
       "Stop early when this many attempts in a row failed in the same way within 10 s of their "
       "start. 0: never."},
      {"reset-restarts-after", 0, "SECONDS", "never", Failures, false,
       "An attempt that ran this long gives all of --max-restarts back."},
      {"report", 0, "FILE", "", Failures, false,
       "How the job ended, as JSON, on every node and also on success (docs/failures.md)."},

      // Output and logs.
      {"log-dir", 0, "FOLDER", "a temporary folder, if files are asked for", Output, true,
       "Where log files go. The temporary folder stays after the run if --redirects or --tee asked "
       "for files. /dev/null: no files, whatever --redirects and --tee say."},
      {"redirects", 'r', "STD", "0", Output, true,
       "Streams that go to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; or by "
       "local rank, as in 0:3,4-7:1 (others: 0)."},
      {"tee", 't', "STD", "0", Output, true, "Streams that go to files and the console; as above."},
      {"local-ranks-filter", 0, "RANKS", "all", Output, true,
       "Only these local ranks are shown on the console, as in 0,4-7. Files are not affected."},
      {"duplicate-stdout-filters", 0, "TEXT,...", "none", Output, true,
       "Lines of tee'd stdout that hold any of these texts also go to filtered_stdout.log of the "
       "attempt. Two commas stand for one."},
      {"duplicate-stderr-filters", 0, "TEXT,...", "none", Output, true,
       "The same for stderr and filtered_stderr.log."},
      {"log-rotate", 0, "SIZE", "never", Output, false,
       "A log file that would grow beyond SIZE (64M, 1G; 4096 bytes at least) goes on in a new "
       "one; the full ones are stdout.log.1, stdout.log.2 ..., the oldest first."},
      {"log-keep", 0, "N", "all", Output, false,
       "With --log-rotate: how many full files of a stream are kept."},
      {"log-line-prefix-template", 0, "TEXT", "[${role_name}${local_rank}]:", Output, false,
       "Console prefix; may hold ${role_name}, ${rank}, ${local_rank}, ${hostname}. Also "
       "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE."},
      {"event-log", 0, "FILE", "none", Output, false,
       "Appends what happens on this node as JSON lines (docs/event_log.md)."},
      {"metrics-file", 0, "FILE", "none", Output, false,
       "Writes this node's metrics as Prometheus's text each few seconds, whole each time "
       "(docs/metrics.md)."},
      {"metrics-port", 0, "[ADDRESS:]PORT", "none", Output, false,
       "Serves them at /metrics, to this machine alone unless an address is given; 0 picks a free "
       "port."},
      {"status-page", 0, "[ADDRESS:]PORT", "none", Output, false,
       "Serves a page with this node's live curves, ranks, attempts and failures, to this user "
       "alone "
       "unless an address is given; 0 picks a free port."},
      {"color", 0, "auto|always|never", "auto", Output, false,
       "Colors of console prefixes and of ddprun's own warnings and errors. auto: on a terminal, "
       "unless NO_COLOR is set or TERM is dumb."},
      {"collapse-output", 0, "", "off", Output, false,
       "Equal lines that several ranks write within a tenth of a second are shown once, as "
       "[default0-7]:. Files are not affected."},
      {"pty", 0, "", "off", Output, false,
       "Workers write to pseudo-terminals, as if somebody watched each of them: colors, progress "
       "bars, unbuffered lines."},
      {"quiet", 'q', "", "off", Output, false,
       "No messages of ddprun's own but errors. The workers' output is not affected."},

      // Accepted so that scripts run unchanged.
      {"monitor-interval", 0, "SECONDS", "0.1", Compatibility, true,
       "Accepted and not used: ddprun is told of every event by the kernel and polls nothing."},
      {"start-method", 0, "spawn|fork|forkserver", "spawn", Compatibility, true,
       "Accepted and not used: every worker is a program of its own."},
      {"event-log-handler", 0, "null|console|dynamic_rendezvous", "null", Compatibility, true,
       "Accepted and not used: --event-log FILE writes ddprun's events."},
      {"logs-specs", 0, "default", "default", Compatibility, true,
       "Accepted: default is the layout of --log-dir. Others are Python plug-ins."},
      {"exit-barrier-timeout", 0, "SECONDS", "300", Compatibility, false,
       "Accepted and not used: nodes end without waiting for each other, and the store lives until "
       "every one has ended. Also TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT."},

      {"help", 0, "", "", Help, true, "All options (-h: the most used ones)."},
      {"version", 0, "", "", Help, false, "The version, and of which commit and how it was built."},

      // Options of torchrun that ddprun does not have. Better a refusal than a silent difference.
  };
  return table;
}

const OptionRow& option_row(std::string_view name) {
  for (const OptionRow& row : option_table()) {
    if (row.name == name) return row;
  }
  throw std::logic_error("no option is called " + std::string(name));
}

const std::vector<OptionGroup>& option_groups() {
  using enum OptionGroup;
  static const std::vector<OptionGroup> groups = {Job,      Hosts,  Endpoint,      Program,
                                                  Failures, Output, Compatibility, Help};
  return groups;
}

std::string group_title(OptionGroup group) {
  switch (group) {
    case OptionGroup::Job:
      return "The job";
    case OptionGroup::Hosts:
      return "Several hosts by one command";
    case OptionGroup::Endpoint:
      return "Where the nodes meet";
    case OptionGroup::Program:
      return "The program";
    case OptionGroup::Failures:
      return "When something breaks";
    case OptionGroup::Output:
      return "Output and logs";
    case OptionGroup::Compatibility:
      return "Accepted for compatibility";
    case OptionGroup::Help:
      return "Help";
    case OptionGroup::Refused:
      break;
  }
  return "Refused";
}

}  // namespace ddprun::launcher
