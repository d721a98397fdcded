// Advice for known causes, by messages as the programs wrote them; and none for ordinary errors.
#include "launcher/report/failure_advice.h"

#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace ddprun::testing;
using ddprun::rendezvous::FirstCause;

namespace {

std::string for_message(const std::string& message) {
  return advice_for({.exit_code = 1, .message = message});
}
std::string for_stderr(const std::string& text, int exit_code = 1) {
  return advice_for({.exit_code = exit_code, .last_stderr = text});
}

struct Known {
  const char* message;
  const char* part_of_advice;
};

}  // namespace

TEST_CASE("known messages get their advice", "[failure_advice]") {
  const std::vector<Known> table = {
      {"OSError: [Errno 98] Address already in use", "a port is in use"},
      {"torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled system "
       "error\nncclSystemError: System call (e.g. socket, malloc) or external library call failed "
       "or device error.\nLast error:\nCall to ibv_reg_mr_iova2 failed with error Cannot allocate "
       "memory",
       "ulimit -l unlimited"},
      {"RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet "
       "initialized",
       "nvidia-fabricmanager"},
      {"RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility "
       "was attempted on non supported HW",
       "cuda-compat"},
      {"RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
       "nvidia-smi -c 0"},
      {"torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the "
       "execution",
       "take this node out"},
      {"Unable to determine the device handle for GPU0: 0000:1B:00.0: GPU is lost.  Reboot the "
       "system to recover this GPU",
       "Xid"},
      {"RuntimeError: CUDA error: unspecified launch failure", "CUDA_LAUNCH_BLOCKING=1"},
      {"RuntimeError: CUDA error: uncorrectable ECC error encountered", "memory is defective"},
      {"torch.AcceleratorError: CUDA error: misaligned address", "CUDA_LAUNCH_BLOCKING=1"},
      {"torch.AcceleratorError: CUDA error: an illegal instruction was encountered",
       "CUDA_LAUNCH_BLOCKING=1"},
      {"RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(a)`",
       "CUDA_LAUNCH_BLOCKING=1"},
      {"RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
       "`cublasCreate(handle)`",
       "memory is full"},
      {"torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error "
       "(run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclUnhandledCudaError: Call "
       "to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
       "memory is full"},
      {"torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error "
       "(run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclUnhandledCudaError: Call "
       "to CUDA function failed.\nLast error:\nCuda failure 700 'an illegal memory access was "
       "encountered'",
       "CUDA_LAUNCH_BLOCKING=1"},
      {"torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error "
       "(run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclUnhandledCudaError: Call "
       "to CUDA function failed.\nLast error:\nCuda failure 999 'unknown error'",
       "NCCL_DEBUG=INFO shows"},
      {"torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
       "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
       "address "
       "already in use",
       "a port is in use"},
      {"bind: Address already in use", "a port is in use"},
      {"std::terminate was called without an exception (a std::thread that was not joined?)",
       "os._exit(0) as its last line"},
      {"torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, internal error\nLast "
       "error:\nBootstrap : no socket interface found",
       "NCCL_SOCKET_IFNAME"},
      {"RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to "
       "find interface for: [127.0.1.1]",
       "GLOO_SOCKET_IFNAME"},
      {"RuntimeError: Unable to find address for: eth7", "GLOO_SOCKET_IFNAME"},
      {"RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:31337",
       "lost a peer"},
      {"broadcast #3 of 9 x float32 failed on rank 1: rank 0 failed: no such file", "lost a peer"},
      {"all_reduce #7 of 8 x float32 failed on rank 3: the link between rank 2 (pid 4127 on "
       "10.0.0.2) and rank 3 (pid 99 on 10.0.0.3) is cut: neither has heard the other for 20 s, "
       "while rank 0 can reach both",
       "ddprun doctor -H HOSTS"},
      {"all_reduce #7 of 8 x float32 failed on rank 3: rank 3 (pid 99 on 10.0.0.3) is cut off: it "
       "has heard nothing from rank 2 (pid 4127 on 10.0.0.2) for 20 s, and no other rank answers "
       "it",
       "ddprun doctor -H HOSTS"},
      {"torch.distributed.DistBackendError: ncclRemoteError: A call failed possibly due to a "
       "network "
       "error or a remote process exiting prematurely.",
       "lost a peer"},
      {"[rank1]:[E101 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation "
       "timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)",
       "did not take part in time"},
      {"RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for "
       "recv "
       "operation to complete",
       "did not take part in time"},
      {"RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 3000 ms",
       "did not take part in time"},
      {"torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while "
       "trying to connect to (node7, 29500).\nThe client socket has failed to connect to any "
       "network "
       "address of (node7, 29500).",
       "nobody answered"},
      {"ConnectionRefusedError: [Errno 111] Connection refused", "nobody answered"},
      {"RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.h:311] Connect "
       "timeout [none]",
       "nobody answered"},
      {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total "
       "capacity of 79.10 GiB of which 1.2 GiB is free.",
       "GPU's memory is full"},
      {"RuntimeError: CUDA error: out of memory", "GPU's memory is full"},
      {"RuntimeError: FIND was unable to find an engine to execute this computation",
       "most often the GPU's memory is full"},
      {"RuntimeError: CUDA error: invalid device ordinal", "fewer GPUs than workers"},
      {"RuntimeError: CUDA error: no kernel image is available for execution on the device",
       "GPU's architecture"},
      {"ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
       "same GPU"},
      {"Multiple Ranks are using the same GPU/Partition: rank 1 and rank 0", "same GPU"},  // 2.30
      {"RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible "
       "that "
       "dataloader's workers are out of shared memory. Please try to raise your shared memory "
       "limit.",
       "/dev/shm is full"},
      {"RuntimeError: unable to write to file </torch_77_1>: No space left on device (28)",
       "/dev/shm is full"},
      {"RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ",
       "data loader process"},
      {"MemoryError", "memory ran out"},
      {"std::bad_alloc: std::bad_alloc", "memory ran out"},
      {"RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
       "allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate "
       "memory)",
       "memory ran out"},
      {"ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
       "shared library is missing"},
      {"ModuleNotFoundError: No module named 'transformers'", "Python module is missing"},
      {"PermissionError: [Errno 13] Permission denied: '/data/x'", "access was denied"},
      {"OSError: [Errno 28] No space left on device", "a disk is full"},
      {"OSError: [Errno 27] File too large", "ulimit -f"},
      {"train: cannot save a checkpoint: ck/a.safetensors.partial: cannot be written: File too "
       "large",
       "ulimit -f"},
      {"ImportError: /x/libtorch.so: failed to map segment from shared object", "mounted noexec"},
      {"./p: error while loading shared libraries: libx.so: failed to map segment from shared "
       "object",
       "ulimit -v"},
      {"Intel oneMKL FATAL ERROR: Cannot load /x/torch/lib/libtorch_cpu.so.",
       "the current folder was removed"},
      {"OSError: [Errno 24] Too many open files: '/data/x'", "open files"},
      {"OSError: [Errno 8] Exec format error: './tool'", "another kind of machine"},
      {"RuntimeError: can't start new thread", "processes and threads"},
      {"/usr/bin/sh: 1: Cannot fork", "processes and threads"},
      {"libgomp: Thread creation failed: Operation not permitted", "refuse clone3"},
      {"OSError: [Errno 30] Read-only file system: '/x'", "read-only"},
  };
  for (const Known& known : table) {
    INFO(known.message);
    const std::string advice = for_message(known.message);
    INFO(advice);
    CHECK(contains(advice, known.part_of_advice));
    CHECK(contains(for_stderr(known.message), known.part_of_advice));
    // Said long before an error of another kind, only what nothing else says is its cause.
    const std::set<std::string> anywhere = {"ulimit -l unlimited",
                                            "memory is defective",
                                            "NCCL_SOCKET_IFNAME",
                                            "GLOO_SOCKET_IFNAME",
                                            "same GPU",
                                            "/dev/shm is full",
                                            "data loader process",
                                            "mounted noexec",
                                            "ulimit -v",
                                            "shared library is missing",
                                            "the current folder was removed"};
    std::string before = std::string(known.message) + '\n';
    for (int line = 0; line < 40; ++line) before += "a line\n";
    const std::string then = advice_for(
        {.exit_code = 1, .message = "KeyError: 'x'", .last_stderr = before + "KeyError: 'x'"});
    CHECK(contains(then, known.part_of_advice) == anywhere.contains(known.part_of_advice));
  }
}

TEST_CASE("what only stderr tells gets its advice", "[failure_advice]") {
  CHECK(
      contains(for_stderr("./prog: error while loading shared libraries: libnccl.so.2: cannot open "
                          "shared object file: No such file or directory",
                          127),
               "shared library is missing"));
  CHECK(contains(for_stderr("./p: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found "
                            "(required by ./p)"),
                 "another version"));
  CHECK(contains(for_stderr("/usr/bin/python3: No module named nope"), "Python module is missing"));
  CHECK(contains(
      for_stderr("python3: can't open file '/x.py': [Errno 2] No such file or directory", 2),
      "no such script"));
  CHECK(contains(
      for_stderr("usage: a.py [-h]\na.py: error: unrecognized arguments: --local-rank=0", 2),
      "LOCAL_RANK"));
  CHECK(contains(for_stderr("sh: 1: nope: not found", 127), "not found"));
  CHECK(contains(for_stderr("sh: 1: ./a: Exec format error", 126), "another kind of machine"));
  CHECK(contains(for_stderr("sh: 1: ./a: Permission denied", 126), "access was denied"));
}

TEST_CASE("how a worker ended gets its advice", "[failure_advice]") {
  CHECK(contains(advice_for({.signal = SIGKILL, .oom_killed = true}), "memory ran out"));
  CHECK(contains(advice_for({.exit_code = 137, .oom_killed = true}), "memory ran out"));
  CHECK(contains(advice_for({.signal = SIGBUS}), "/dev/shm"));
  CHECK(contains(advice_for({.exit_code = 128 + SIGBUS}), "/dev/shm"));
  const std::string in_train = advice_for(
      {.signal = SIGBUS,
       .message = "SIGBUS: memory that cannot be reached\nddprun::trainer::train(ddprun::"
                  "trainer::TrainingJob&)+0x1f in build/bin/train"});
  CHECK_FALSE(contains(in_train, "/dev/shm"));
  CHECK(contains(in_train, "replaced while it ran"));
  CHECK(contains(advice_for({.signal = SIGILL}), "another processor"));
  CHECK(contains(advice_for({.signal = SIGKILL}), "somebody sent SIGKILL"));
  CHECK(contains(advice_for({.signal = SIGKILL}), "limit of CPU time (ulimit -t)"));
  CHECK(contains(advice_for({.signal = SIGSEGV}), "PYTHONFAULTHANDLER"));
  CHECK(contains(advice_for({.signal = SIGFPE}), "PYTHONFAULTHANDLER"));
  CHECK(contains(advice_for({.signal = SIGABRT}), "PYTHONFAULTHANDLER"));
  CHECK(advice_for({.signal = SIGSEGV, .message = "SIGSEGV: invalid memory access"}) == "");
  CHECK(contains(advice_for({.signal = SIGXCPU}), "CPU time is used up"));
  CHECK(contains(advice_for({.signal = SIGXFSZ}), "ulimit -f"));
  CHECK(contains(advice_for({.exit_code = 126}), "chmod +x"));
  CHECK(contains(advice_for({.exit_code = 2, .usage_error = true}), "what its message names"));
  // What it says is nearer to the cause than what killed it.
  CHECK(
      contains(advice_for({.signal = SIGBUS, .last_stderr = "std::bad_alloc"}), "memory ran out"));
}

TEST_CASE("a worker that was ended since it stood still is advised on that", "[failure_advice]") {
  const std::string words = "std::bad_alloc";

  CHECK(contains(advice_for({.signal = SIGKILL, .message = words, .halted = true}),
                 "halts processes"));
  CHECK(contains(advice_for({.signal = SIGKILL, .message = words, .hung_ms = 1}), "--on-stall"));
}

TEST_CASE("a launcher's own limit is another one's than its worker's", "[failure_advice]") {
  CHECK(contains(for_message("OSError: [Errno 24] Too many open files"), "set_sharing_strategy"));
  CHECK_FALSE(contains(for_message("fork: Resource temporarily unavailable"), "raise it"));
}

TEST_CASE("a special cause on stderr explains a general message", "[failure_advice]") {
  CHECK(contains(
      advice_for({.exit_code = 1,
                  .message = "RuntimeError: NCCL error: unhandled system error",
                  .last_stderr = "vm:7:7 [0] NCCL WARN Bootstrap : no socket interface found"}),
      "NCCL_SOCKET_IFNAME"));
}

TEST_CASE("ordinary failures get no advice", "[failure_advice]") {
  for (const char* message : {
           "ValueError: expected sequence of length 3 at dim 1 (got 2)",
           "KeyError: 'address'",
           "AssertionError",
           "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
           "FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'",
           "KeyError: 'MemoryError'",
           "node[1]: MemoryError",                         // No rank of torch's before it.
           "Connection refused: no socket to connect to",  // The parts in another order.
           "ZeroDivisionError: division by zero",
           "std::out_of_range: vector::_M_range_check: __n (which is 4) >= this->size() (which is "
           "4)",
           "torch.nn.modules.module.ModuleAttributeError: 'Net' object has no attribute 'x'",
           "subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1.",
       }) {
    INFO(message);
    CHECK(for_message(message) == "");
    CHECK(for_stderr(message) == "");
  }
  CHECK(for_stderr("") == "");
  CHECK(for_stderr("no cheese", 7) == "");
}

TEST_CASE("a launcher that may have no more files or processes is told which limit to raise",
          "[failure_advice]") {
  const auto for_start = [](const std::string& message) {
    return advice_for({.kind = FirstCause::Kind::StartFailed, .message = message});
  };
  CHECK(contains(for_start("cannot start worker 2: 'train': Too many open files"), "ulimit -n"));
  // As the guard process, a thread and a worker are refused.
  for (const char* what : {"cannot start the guard process: Resource temporarily unavailable",
                           "cannot start worker 5: 'train': Resource temporarily unavailable (the "
                           "limit of processes is reached (ulimit -u))"}) {
    CHECK(contains(for_start(what), "ulimit -u, or the container's pids limit"));
  }
  CHECK(for_start("cannot start worker 0: 'train': Permission denied") == "");
  CHECK(contains(for_start("--restart-memory: cannot make it: File too large"), "ulimit -f"));
  CHECK(contains(for_start("cannot make the directory /tmp/x/attempt_0: No space left on device"),
                 "set TMPDIR"));
  CHECK(contains(for_start("cannot start a thread: Operation not permitted"), "refuse clone3"));
}

TEST_CASE("source lines that a traceback quotes are not words of the failure", "[failure_advice]") {
  const std::string text =
      "Traceback (most recent call last):\n"
      "  File \"Permission denied.py\", line 3, in <module>\n"
      "    raise ValueError(\"x\")  # not: Address already in use, No space left on device\n"
      "    ^^^^^^^^^^^^^^^^^^^^^^\n"
      "ValueError: x\n";

  CHECK(for_stderr(text) == "");
  CHECK(for_message("ValueError: x\n" + text) == "");
  // Of several errors, whose lines all are indented, and of a syntax error, which has no headline.
  CHECK(for_stderr("  + Exception Group Traceback (most recent call last):\n"
                   "  |   File \"a.py\", line 3, in <module>\n"
                   "  |     raise ExceptionGroup(\"Too many open files\", errors)\n"
                   "  | ExceptionGroup: all of them (1 sub-exception)\n") == "");
  CHECK(for_stderr("  File \"a.py\", line 1\n    print \"Permission denied\"\n    ^^^^^^\n"
                   "SyntaxError: Missing parentheses in call to 'print'\n") == "");
  // What comes after a traceback counts again, also indented.
  CHECK(contains(for_stderr(text + "  df: /data: No space left on device\n"), "a disk is full"));
  CHECK(for_stderr("[rank0]: Traceback (most recent call last):\n[rank0]:   File \"a\", line 1\n"
                   "[rank0]:     f(\"Too many open files\")\n[rank0]: ValueError: y\n") == "");
}

TEST_CASE("torch's rank before a line, however long, is none of its words", "[failure_advice]") {
  CHECK(contains(for_message("[rank1023]: MemoryError"), "memory ran out"));
}

TEST_CASE("the last five lines of stderr that say something are its last words",
          "[failure_advice]") {
  const std::string full = "cp: b: No space left on device\n";

  CHECK(contains(for_stderr(full + "1\n2\n3\n4\n"), "a disk is full"));
  CHECK(contains(for_stderr(full + "1\n2\n\n \t\n3\n4\n\n"), "a disk is full"));
  CHECK(for_stderr(full + "1\n2\n3\n4\n5\n") == "");
}

TEST_CASE("an old warning does not explain a failure that has its own message",
          "[failure_advice]") {
  CHECK(advice_for({.exit_code = 1,
                    .message = "KeyError: 'lr'",
                    .last_stderr =
                        "warning: cannot read ~/.cache: Permission denied\nKeyError: 'lr'"}) == "");
}

TEST_CASE("14.11: who names a peer's end has no error of its own", "[failure_advice]") {
  for (const char* message : {
           "barrier #1 failed on rank 1: rank 0 failed: this is a checkpoint of another model",
           "all_reduce #7 of 8 x float32 failed on rank 3: rank 2 (pid 4127 on 10.0.0.2) is gone: "
           "its connection broke",
           "barrier #1 failed on rank 0: rank 1 closed the communicator while rank 0 waited in "
           "barrier #1",
           "a step failed on rank 0: rank 1 failed: an exception ended it, and closed its "
           "communicator (its own output says which)",
           "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3",
           "RuntimeError: [gloo/transport/tcp/pair.cc:278] writev [10.0.0.2]:3: Broken pipe",
           "RuntimeError: eof (this error originated at tensorpipe/transport/shm/connection_impl.cc"
           ":259)",
           "xgboost.core.XGBoostError: [00:44:37] /workspace/src/collective/result.cc:83: "
           "[coll_c_api.cc:38|00:44:37]:\n\n- [allreduce.cc:39|00:44:37]: Ring allreduce failed.",
           "- [loop.cc:101|00:44:37]: Encountered EOF. The other end is likely closed.",
           "lightgbm.basic.LightGBMError: Socket send error, Broken pipe (code: 32)",
           "F1201 00:40:47.575227    2136 client.h:80] Terminating process because the JAX "
           "distributed service detected fatal errors. This most likely indicates that another "
           "task died; see the other task logs for more details.",
           "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while "
           "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
       }) {
    INFO(message);
    CHECK(names_a_lost_peer(message));
  }
  for (const char* message : {
           "this is a checkpoint of another model",
           "barrier #1 failed on rank 1: rank 1: the data is a null pointer",
           "rank 0 failed",
           "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 3000 ms",
           "KeyError: 'rank'",
           "",
       }) {
    INFO(message);
    CHECK_FALSE(names_a_lost_peer(message));
  }
}

TEST_CASE("last words name a peer's end where no other cause is among them", "[failure_advice]") {
  CHECK(
      last_words_name_a_lost_peer("step 7\nerror: all_reduce #7 failed on rank 1: rank 0 failed: "
                                  "an exception ended it\n"));
  CHECK_FALSE(last_words_name_a_lost_peer(""));
  CHECK_FALSE(last_words_name_a_lost_peer("error: the loss is not a number\n"));
  // Another cause before it, or the one that it brought about.
  CHECK_FALSE(last_words_name_a_lost_peer("std::bad_alloc\nrecv: Connection reset by peer\n"));
  // Of a download that was tried again, long before.
  CHECK_FALSE(last_words_name_a_lost_peer("Connection reset by peer\n1\n2\n3\n4\nerror\n"));
}

TEST_CASE("who has waited for a peer in vain names no error of its own", "[failure_advice]") {
  const auto is_late = [](const std::string& message, const std::string& last_stderr = "") {
    return tells_of_a_late_peer({.exit_code = 1, .message = message, .last_stderr = last_stderr});
  };
  const std::string gloo =
      "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv "
      "operation to complete";

  CHECK(is_late(gloo));
  CHECK(is_late("", "step 7\n" + gloo + "\n"));
  CHECK(is_late("RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 6000 ms"));
  CHECK(
      is_late("all_reduce(4 floats), call 17, on rank 0: rank 1 did not answer (stopped, or cut "
              "off from the others)"));
  CHECK_FALSE(is_late("RuntimeError: [pair.cc:561] Connection closed by peer [10.0.0.2]:3"));
  CHECK_FALSE(is_late("KeyError: 'labels'", gloo));
  CHECK_FALSE(is_late(""));

  const std::string ours = "barrier #1 failed on rank 0: rank 1 did not call it within 5 s";
  CHECK(is_late("", "step 7\n" + ours + "\n"));
  CHECK_FALSE(is_late("", ours + "\n1\n2\n3\n4\n5\n"));  // It got over that.
  CHECK(is_late(ours + "\n1\n2\n3\n4\n5\n"));            // Of a message all lines count.
  CHECK_FALSE(is_late("No space left on device, after " + ours));
}

TEST_CASE("only workers that failed are advised on", "[failure_advice]") {
  CHECK(advice_for({.kind = FirstCause::Kind::NodeLost, .message = "Connection reset by peer"}) ==
        "");
  CHECK(advice_for({.kind = FirstCause::Kind::Interrupted, .signal = SIGBUS}) == "");
}

TEST_CASE("advice is short enough for a control message", "[failure_advice]") {
  for (int signal = 1; signal < 32; ++signal) CHECK(advice_for({.signal = signal}).size() < 300);
}
