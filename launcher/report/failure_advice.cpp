// A table in order of precedence: a new cause is a row, placed before the more general ones.
#include "launcher/report/failure_advice.h"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <string_view>
#include <vector>

namespace ddprun::launcher {
namespace {

using rendezvous::FirstCause;
using Lines = std::vector<std::string_view>;

// Lines of stderr that count when the worker left no message: the last words, not the whole story.
constexpr std::size_t last_words = 5;

// glibc 2.34 and later take another call for threads, and the usual one only where this one is not
// known: rules that do not know it either must answer ENOSYS, and older ones answer EPERM.
constexpr std::string_view threads_refused =
    "this container's seccomp rules refuse clone3, by which threads are started, as those of "
    "Docker before 20.10.10 do: update Docker and libseccomp, or docker run --security-opt "
    "seccomp=unconfined";

constexpr std::string_view file_too_large =
    "a file, or shared memory, reached the limit of file sizes: raise it (ulimit -f)";
constexpr std::string_view disk_full =
    "a disk is full (df -h, df -i; also /tmp and /dev/shm): free some, or set TMPDIR";

struct Row {
  // Any of them, in one line: parts that stand in this order, '*' between them; '^' is the line's
  // begin.
  std::vector<std::string_view> patterns;
  // True: also counts anywhere in the last lines of stderr, because only this cause says so.
  bool anywhere;
  std::string_view advice;
};

// What Gloo, NCCL, TensorPipe, XGBoost, LightGBM, JAX and our own communicators say (worker/cpu,
// worker/mpi: "all_reduce failed on rank 1: rank 0 failed: ...").
const std::vector<std::string_view>& lost_peer_patterns() {
  static const std::vector<std::string_view> patterns = {
      "ncclRemoteError",
      "Connection closed by peer",
      "Connection reset by peer",
      "reached monitoredBarrier, but received errors while waiting for send/recv from rank",
      "remote process exited or there was a network error",
      "gloo/transport/tcp/*: Broken pipe",
      "eof (this error originated at tensorpipe/",
      "broken pipe (this error originated at tensorpipe/",
      "Encountered EOF. The other end is likely closed.",
      "XGBoostError: *collective/result.cc",
      "Socket send error, Broken pipe",
      "JAX distributed service detected fatal errors. * another task died",
      "Socket closed by remote peer",
      "peer * closed its connection",
      "peer closed the connection",
      "lost its peer",
      " failed on rank *: rank * failed: ",
      " failed on rank *: rank * is gone: ",
      " failed on rank *: rank * closed the communicator while "};
  return patterns;
}

// What Gloo, NCCL and stores say when their time is up.
const std::vector<std::string_view>& late_peer_patterns() {
  static const std::vector<std::string_view> patterns = {
      "Watchdog caught collective operation timeout", "caught collective operation timeout",
      "Timed out waiting * for recv operation",       "Timed out waiting * for send operation",
      "failed to pass monitoredBarrier in",           "wait timeout after * ms, keys:",
      "Timed out after * waiting for clients"};
  return patterns;
}

// The first row that matches is the advice: special causes before general ones.
const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {{"unrecognized arguments: *--local-rank=", "unrecognized arguments: *--local_rank="},
       true,
       "the program does not know --local-rank: leave out --pass-local-rank and read LOCAL_RANK; "
       "or, where it knows --local_rank, put '--local_rank=${local_rank}' behind it"},
      // Memory.
      {{"CUDA out of memory", "CUDA error: out of memory", "cudaErrorMemoryAllocation",
        "CUDA_ERROR_OUT_OF_MEMORY", "HIP out of memory", "Cuda failure*'out of memory'"},
       false,
       "the GPU's memory is full: smaller batch, activation checkpointing, or look with nvidia-smi "
       "whether another process is on this GPU"},
      // LibTorch has swallowed that a convolution's work space was refused.
      {{"unable to find an engine to execute this computation",
        "Unable to find a valid cuDNN algorithm to run convolution", "CUDNN_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_ALLOC_FAILED",
        "CUBLAS_STATUS_NOT_INITIALIZED"},
       false,
       "most often the GPU's memory is full: smaller batch; else CUDA's libraries, the driver and "
       "the GPU do not go together"},
      {{"Unexpected bus error encountered in worker", "out of shared memory*shared memory limit",
        "unable to mmap * bytes from file </torch_*Cannot allocate memory",
        "unable to write to file </torch_", "Error while creating shared memory segment /dev/shm",
        "unable to allocate shared memory(shm)", "No space left on device*/dev/shm",
        "/dev/shm*No space left on device"},
       true,
       "/dev/shm is full: enlarge it (docker run --shm-size=8g or --ipc=host) or use fewer data "
       "loader workers"},
      {{"DataLoader worker (pid*killed by signal: Killed"},
       true,
       "a data loader process was killed, most often because memory ran out: fewer of them "
       "(num_workers), smaller batches, or a higher memory limit"},
      // NCCL's, in whose words memory seems to be what is missing.
      {{"Call to ibv_reg_mr*failed with error Cannot allocate memory"},
       true,
       "InfiniBand may not lock as much memory as it needs: ulimit -l unlimited (memlock in "
       "limits.conf, LimitMEMLOCK of a unit, docker run --ulimit memlock=-1)"},
      {{"DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory",
        "^MemoryError", "std::bad_alloc", "Cannot allocate memory", "[Errno 12]"},
       false,
       "memory ran out: fewer workers on this node, smaller batches, or a higher limit "
       "(ulimit -v, the container's or the scheduler's)"},
      // GPUs.
      {{"Duplicate GPU detected", "Multiple Ranks are using the same GPU"},
       true,
       "two ranks use the same GPU: call set_device(LOCAL_RANK) before the first collective, and "
       "start at most one worker per GPU (--nproc-per-node gpu); parts of one (MIG) are one to "
       "NCCL"},
      {{"invalid device ordinal", "cudaErrorInvalidDevice"},
       false,
       "there are fewer GPUs than workers: --nproc-per-node gpu starts one per GPU; check "
       "CUDA_VISIBLE_DEVICES"},
      {{"no kernel image is available for execution on the device"},
       false,
       "this build has no code for this GPU's architecture: install or build one that has"},
      {{"Found no NVIDIA driver on your system", "CUDA driver version is insufficient",
        "No CUDA GPUs are available", "no CUDA-capable device is detected"},
       false,
       "no usable NVIDIA driver here: check nvidia-smi, the container's --gpus, "
       "CUDA_VISIBLE_DEVICES"},
      // CUDA's words for what is the machine's fault: cudaGetErrorString().
      {{"system not yet initialized"},
       false,
       "the switches between this machine's GPUs are not set up: systemctl status "
       "nvidia-fabricmanager, which must be of the driver's version"},
      {{"system has unsupported display driver / cuda driver combination",
        "forward compatibility was attempted on non supported HW",
        "Driver/library version mismatch"},
       false,
       "the driver and its libraries are of different versions, most often since an update: "
       "reboot; in a container, leave its cuda-compat libraries out"},
      {{"CUDA-capable device(s) is/are busy or unavailable",
        "all CUDA-capable devices are busy or unavailable"},
       false,
       "this GPU lets no other process in (nvidia-smi -q -d COMPUTE; nvidia-smi -c 0 shares it), "
       "or it is lost: nvidia-smi, and Xid in the kernel's log (dmesg)"},
      {{"uncorrectable NVLink error",
        "Invalid access of peer GPU memory over nvlink or a hardware error", "hardware stack error",
        "GPU is lost", "fallen off the bus"},
       false,
       "the GPU or its NVLink is defective, or was lost: take this node out of the job, look for "
       "Xid in the kernel's log (dmesg); nvidia-smi --gpu-reset, or reboot; with "
       "--node-check \"ddprun doctor --brief\" a node whose GPU is lost leaves by itself"},
      {{"unspecified launch failure"},
       false,
       "a CUDA kernel crashed earlier than the traceback says: run with CUDA_LAUNCH_BLOCKING=1; "
       "with an Xid of 48, 79, 94 or 95 in the kernel's log (dmesg) it was the GPU"},
      {{"device-side assert triggered", "an illegal memory access was encountered",
        "an illegal instruction was encountered", "CUDA error: misaligned address",
        "Cuda failure*'misaligned address'", "has failed*: misaligned address",
        "invalid program counter", "operation not supported on global/shared address space",
        "the launch timed out and was terminated", "CUBLAS_STATUS_EXECUTION_FAILED",
        "CUDNN_STATUS_EXECUTION_FAILED"},
       false,
       "a CUDA kernel failed earlier than the traceback says: run with CUDA_LAUNCH_BLOCKING=1"},
      {{"uncorrectable ECC error"},
       true,
       "the GPU's memory is defective: take this node out of the job (nvidia-smi -q -d ECC)"},
      {{"Cannot re-initialize CUDA in forked subprocess"},
       false,
       "use the start method spawn for processes that touch CUDA, or touch it only after the fork"},
      // Where neither says more.
      {{"unhandled cuda error", "CUDA error: unknown error"},
       false,
       "CUDA failed, and does not say of what: NCCL_DEBUG=INFO shows the call where it is one of "
       "NCCL's; look for Xid in the kernel's log (dmesg) and at nvidia-smi"},
      // The network.
      {{"no socket interface found", "NCCL_SOCKET_IFNAME*not found",
        "Bootstrap : no * interface found"},
       true,
       "NCCL finds no network interface: set NCCL_SOCKET_IFNAME to one that `ip -br addr` lists, "
       "or unset it"},
      {{"Unable to find interface for", "Unable to find address for", "GLOO_SOCKET_IFNAME*invalid",
        "Unable to resolve hostname to a (local) address"},
       true,
       "Gloo finds no network interface: set GLOO_SOCKET_IFNAME to one that `ip -br addr` lists, "
       "or repair this host's name in /etc/hosts"},
      {{"Address already in use", "address already in use", "EADDRINUSE"},
       false,
       "a port is in use: find its holder with `ss -ltnp`, choose another one, or let the program "
       "use the launcher's MASTER_ADDR and MASTER_PORT"},
      // Our own communicators' words for a silence that others could judge
      // (worker/peers/silence.h).
      {{" failed on rank *: the link between rank * is cut: ",
        " failed on rank *: rank * is cut off: it has heard nothing from "},
       false,
       "the network between these hosts: `ddprun doctor -H HOSTS` tries each pair of them; a "
       "cable, a switch's port, a route or a firewall (ip -s link, ip route)"},
      {lost_peer_patterns(), false,
       "this worker lost a peer, which most likely failed first: look at the other ranks' logs "
       "and nodes"},
      {late_peer_patterns(), false,
       "a rank did not take part in time: look at the other ranks' logs for an error or a hang "
       "(py-spy dump -p PID), then at the network"},
      {{"gloo*Connection refused", "gloo*connect*timed out", "gloo*Connect timeout",
        "socketProgressOpt*Connection refused", "socketStartConnect*Connection refused",
        "NCCL*Connection refused", "The client socket has failed",
        "The client socket has timed out", "No route to host", "Connection timed out [SSL",
        "connect to*Connection refused", "connect*: Connection refused", "^ConnectionRefusedError"},
       false,
       "nobody answered at that address: the other side failed first (look at its log), or a "
       "firewall or a wrong interface is between, which `ddprun doctor -H HOSTS` finds "
       "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)"},
      // The launcher's own words (stderr_message.cpp). A thread of Gloo's that lets go of a tensor
      // while the interpreter ends dies so; programs that keep the group elsewhere, as a model in
      // DistributedDataParallel does, are not helped by its destruction.
      {{"std::terminate was called without an exception (a std::thread that was not joined?)"},
       false,
       "a Python program that had done its work: torch's threads did not bear the interpreter's "
       "end, "
       "os._exit(0) as its last line leaves that out; one in C++: join its threads"},
      // Programs, libraries, files. The loader leaves out why; it has found the library.
      {{"error while loading shared libraries:*failed to map segment from shared object",
        "error while loading shared libraries:*cannot map zero-fill pages",
        "^ImportError: *failed to map segment from shared object",
        "^OSError: *failed to map segment from shared object"},
       true,
       "a shared library is there and cannot be mapped: its folder is mounted noexec (findmnt -T "
       "FOLDER), or this process may have no more memory (ulimit -v)"},
      {{"error while loading shared libraries:", "^ImportError: *cannot open shared object file",
        "^OSError: *cannot open shared object file"},
       true,
       "a shared library is missing: install it, or add its folder to LD_LIBRARY_PATH (ldd shows "
       "what is not found)"},
      // LibTorch's oneMKL asks for the current folder while it is loaded.
      {{"MKL FATAL ERROR: Cannot load*libtorch"},
       true,
       "LibTorch's oneMKL does not start where the current folder was removed: cd to one that "
       "exists (cd \"$PWD\" where it was made anew), and start from there"},
      {{"version `GLIBC*' not found", "version `GLIBCXX*' not found", "version `CXXABI*' not found",
        "symbol lookup error:", "undefined symbol: "},
       true,
       "a library has another version than the program was built for: build it here, or set "
       "LD_LIBRARY_PATH to the right one"},
      {{"^ModuleNotFoundError: No module named", "Error while finding module specification for",
        ": No module named "},
       false,
       "a Python module is missing: is it the right interpreter (PYTHON_EXEC, the virtual "
       "environment), is the module installed, does PYTHONPATH hold its folder?"},
      {{": can't open file '*: [Errno "},
       true,
       "Python finds no such script: check the path, it counts from the launcher's folder"},
      {{"Exec format error", "cannot execute binary file"},
       false,
       "the program is for another kind of machine, or a script without its first line (#!)"},
      {{"Too many open files", "[Errno 24]"},
       false,
       "the limit of open files is reached: raise it (ulimit -n), or use "
       "torch.multiprocessing.set_sharing_strategy('file_system')"},
      {{"No space left on device", "[Errno 28]", "Disk quota exceeded"}, false, disk_full},
      {{"File too large", "[Errno 27]"}, false, file_too_large},
      {{"Thread creation failed: Operation not permitted",
        "pthread_create failed*Operation not permitted"},
       false,
       threads_refused},
      // A shell's words, which leave out why.
      {{"can't start new thread", "Resource temporarily unavailable", "[Errno 11]",
        ": Cannot fork"},
       false,
       "the limit of processes and threads is reached (ulimit -u, the container's pids limit)"},
      {{"Permission denied", "[Errno 13]"},
       false,
       "access was denied: check the owner and mode of that file (ls -l, id)"},
      {{"Read-only file system", "[Errno 30]"},
       false,
       "that folder is read-only here: write to another one, or mount it writable"},
  };
  return table;
}

bool line_matches(std::string_view line, std::string_view pattern) {
  if (pattern[0] == '^') {
    pattern.remove_prefix(1);
    if (line.find(pattern.substr(0, pattern.find('*'))) != 0) return false;
  }
  for (;;) {
    const std::size_t star = pattern.find('*');
    const std::string_view part = pattern.substr(0, star);
    const std::size_t at = line.find(part);
    if (at == line.npos) return false;
    if (star == pattern.npos) return true;
    line.remove_prefix(at + part.size());
    pattern.remove_prefix(star + 1);
  }
}

// Lines that tell what happened. In a traceback the indented ones are source.
Lines telling_lines(std::string_view text) {
  Lines lines;
  bool in_traceback = false;
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == text.npos ? text.size() : newline + 1);
    std::string_view words = line;
    if (words.substr(0, 5) == "[rank" && words.find("]: ") < 12) {
      words.remove_prefix(words.find("]: ") + 3);
    }
    const bool indented = !words.empty() && (words[0] == ' ' || words[0] == '\t');
    if (words.find("Traceback (most recent call last):") != words.npos) in_traceback = true;
    if (in_traceback && indented) continue;
    if (words.find("Traceback (most recent call last):") == words.npos) in_traceback = false;
    if (words.substr(0, 8) == "  File \"") {  // A syntax error's: its source line follows.
      in_traceback = true;
      continue;
    }
    if (words.find_first_not_of(" \t\r") != words.npos) lines.push_back(words);
  }
  return lines;
}

bool any_matches(const Lines& lines, const std::vector<std::string_view>& patterns) {
  for (const std::string_view line : lines) {
    for (const std::string_view pattern : patterns) {
      if (line_matches(line, pattern)) return true;
    }
  }
  return false;
}

Lines last_of(const Lines& lines) {
  const std::size_t count = std::min(lines.size(), last_words);
  return {lines.end() - static_cast<std::ptrdiff_t>(count), lines.end()};
}

// The row of what is told in `close`, or of what counts anywhere in `all`; or null.
const Row* row_for(const Lines& close, const Lines& all) {
  for (const Row& row : rows()) {
    if (any_matches(close, row.patterns)) return &row;
  }
  for (const Row& row : rows()) {
    if (row.anywhere && any_matches(all, row.patterns)) return &row;
  }
  return nullptr;
}

// All of the message, or, where there is none, the last words on stderr.
Lines said_of_end(const FirstCause& cause) {
  const Lines said = telling_lines(cause.message);
  return said.empty() ? last_of(telling_lines(cause.last_stderr)) : said;
}

const Row* row_for_words(const FirstCause& cause) {
  return row_for(said_of_end(cause), telling_lines(cause.last_stderr));
}

std::string_view advice_for_words(const FirstCause& cause) {
  const Row* row = row_for_words(cause);
  return row == nullptr ? "" : row->advice;
}

// A shell ends with 128 + n when what it ran was killed by signal n.
int signal_of(const FirstCause& cause) {
  if (cause.signal != 0) return cause.signal;
  return cause.exit_code > 128 && cause.exit_code <= 128 + 64 ? cause.exit_code - 128 : 0;
}

std::string_view advice_for_signal(const FirstCause& cause) {
  switch (signal_of(cause)) {
    case SIGBUS:
      // `train` has its shared memory reserved before it uses any.
      if (cause.message.find("ddprun::trainer::") != cause.message.npos) {
        return "a bus error in train is most often its program or a library of it that was "
               "replaced while it ran (install a new one under another name), or a disk or file "
               "server that fails (dmesg -T)";
      }
      return "a bus error is most often a full /dev/shm (df /dev/shm): enlarge it (docker run "
             "--shm-size=8g or --ipc=host); otherwise a mapped file that became shorter";
    case SIGILL:
      return "the program was built for another processor (-march=native on another machine?): "
             "build it for the oldest one in the job";
    case SIGKILL:
      // A hard limit of CPU time ends by it, and `ulimit -t` sets that with the soft one.
      return "somebody sent SIGKILL: a scheduler that enforces a limit, the machine's "
             "out-of-memory killer (dmesg -T | grep -i kill), the limit of CPU time (ulimit -t), "
             "or a person";
    case SIGXCPU:
      return "the limit of CPU time is used up (ulimit -t, or the scheduler's)";
    case SIGXFSZ:
      return file_too_large;
    case SIGSEGV:
    case SIGFPE:
    case SIGABRT:
      if (!cause.message.empty()) return "";
      return "to see where it crashed: PYTHONFAULTHANDLER=1 for a Python program, or a core dump "
             "(ulimit -c unlimited)";
    default:
      return "";
  }
}

std::string_view advice_for_code(const FirstCause& cause) {
  if (cause.signal != 0) return "";
  if (cause.usage_error) return "mend what its message names, and start the job again";
  if (cause.exit_code == 127) {
    return "127 is a shell's word for a command that was not found: check its name and PATH";
  }
  if (cause.exit_code == 126) {
    return "126 is a shell's word for a command that cannot be executed: check its mode (chmod +x)";
  }
  return "";
}

}  // namespace

bool names_a_lost_peer(std::string_view message) {
  return any_matches(telling_lines(message), lost_peer_patterns());
}

bool last_words_name_a_lost_peer(std::string_view last_stderr) {
  const Lines all = telling_lines(last_stderr);
  const Row* row = row_for(last_of(all), all);
  return row != nullptr && row->patterns == lost_peer_patterns();
}

bool tells_of_a_late_peer(const FirstCause& cause) {
  const Row* row = row_for_words(cause);
  if (row != nullptr) return row->patterns == late_peer_patterns();
  // Our own communicators' words, which name the peer and need no advice (worker/peers,
  // worker/mpi).
  return any_matches(said_of_end(cause), {" did not answer (stopped, ", " did not call it"});
}

std::string advice_for(const FirstCause& cause) {
  // The launcher's own words, which name the way out themselves; but this comes from anywhere.
  const bool start_failed = cause.kind == FirstCause::Kind::StartFailed;
  if (start_failed && cause.message.find("Too many open files") != std::string::npos) {
    return "the limit of open files is reached: raise it (ulimit -n)";
  }
  if (start_failed && cause.message.find("Resource temporarily unavailable") != std::string::npos) {
    return "the limit of processes and threads is reached: raise it (ulimit -u, or the container's "
           "pids limit)";
  }
  if (start_failed && cause.message.find("No space left on device") != std::string::npos) {
    return std::string(disk_full);
  }
  if (start_failed && cause.message.find("File too large") != std::string::npos) {
    return std::string(file_too_large);
  }
  if (start_failed &&
      cause.message.find("a thread: Operation not permitted") != std::string::npos) {
    return std::string(threads_refused);
  }
  if (cause.kind != FirstCause::Kind::WorkerFailed) return "";
  if (cause.halted) {
    return "look who halts processes on its host: a person or a program that sent SIGSTOP, a "
           "scheduler that suspends jobs, a terminal (SIGTTIN, SIGTTOU); `ddprun status` shows who "
           "is halted";
  }
  if (cause.hung_ms > 0) {
    return "its stack above, and those of the others further up, say where they stood; --on-stall "
           "report leaves them for a debugger";
  }
  if (cause.oom_killed) {
    return "memory ran out and the kernel killed it: fewer workers on this node, fewer data loader "
           "workers, smaller batches, or a higher memory limit";
  }
  if (const auto advice = advice_for_words(cause); !advice.empty()) return std::string(advice);
  if (const auto advice = advice_for_signal(cause); !advice.empty()) return std::string(advice);
  return std::string(advice_for_code(cause));
}

}  // namespace ddprun::launcher
