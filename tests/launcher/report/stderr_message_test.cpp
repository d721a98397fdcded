// Tracebacks and last words, as real programs wrote them.
#include "launcher/report/stderr_message.h"

#include <csignal>
#include <random>
#include <string>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

namespace {

std::string traceback_of(const std::string& stderr_tail) {
  return message_from_stderr(stderr_tail, 1, 0);
}
std::string words_at_abort(const std::string& stderr_tail) {
  return message_from_stderr(stderr_tail, 0, SIGABRT);
}

// Python 3.11.
const std::string plain =
    "Traceback (most recent call last):\n"
    "  File \"/job/train.py\", line 6, in <module>\n"
    "    main()\n"
    "    ^^^^^^\n"
    "  File \"/job/train.py\", line 3, in main\n"
    "    raise ValueError(\"no such model\")\n"
    "ValueError: no such model\n";

const std::string frames =
    "Traceback (most recent call last):\n"
    "  File \"/job/train.py\", line 6, in <module>\n"
    "    main()\n"
    "    ^^^^^^\n"
    "  File \"/job/train.py\", line 3, in main\n"
    "    raise ValueError(\"no such model\")";

std::string of_rank_3(const std::string& text) {
  std::string prefixed;
  for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != text.npos; at = end + 1) {
    prefixed += "[rank3]: " + text.substr(at, end - at + 1);
  }
  return prefixed;
}

}  // namespace

TEST_CASE("a Python traceback becomes the message, the exception first", "[stderr_message]") {
  const std::string expected = "ValueError: no such model\n" + frames;

  CHECK(traceback_of(plain) == expected);
  CHECK(traceback_of("epoch 1\nepoch 2\n" + plain + "[W] process group was not destroyed\n") ==
        expected);
}

TEST_CASE("torch's rank before each line is taken off", "[stderr_message]") {
  CHECK(traceback_of("NCCL version 2.21\n" + of_rank_3(plain)) ==
        "ValueError: no such model\n" + frames);
}

TEST_CASE("torch's rank tells all that an exception says", "[stderr_message]") {
  // Torch 2.11. The last line says what kind of failure it is.
  const std::string where =
      "Traceback (most recent call last):\n"
      "  File \"a.py\", line 6, in <module>\n"
      "    dist.monitored_barrier()";
  const std::string exception =
      "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 3000 ms\n"
      " Original exception: \n"
      "\n"
      "[unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete";
  const std::string written = of_rank_3(where + "\n" + exception + "\n");

  CHECK(traceback_of(written + "[rank3]:[W1130 ProcessGroup.cpp] not destroyed\n") ==
        exception + "\n" + where);
  // Another one that was not written to its end is none of it.
  CHECK(traceback_of(written + of_rank_3("\nDuring handling of the above exception, another "
                                         "exception occurred:\n\nTraceback (most recent call "
                                         "last):\n  File \"b\"\n")) == exception + "\n" + where);
}

TEST_CASE("a traceback goes on behind a blank line in its middle", "[stderr_message]") {
  // Python 3.11, of an exception in a signal's handler.
  const std::string signalled =
      "Traceback (most recent call last):\n"
      "  File \"process.py\", line 153, in is_alive\n"
      "    def is_alive(self):\n"
      "\n"
      "  File \"signal_handling.py\", line 73, in handler\n"
      "    _error_if_any_worker_fails()";
  const std::string exception = "RuntimeError: DataLoader worker (pid 7) is killed by signal: 11";
  const std::string expected = exception + "\n" + signalled;

  CHECK(traceback_of("epoch 1\n" + signalled + "\n" + exception + "\n") == expected);
  // Torch puts the rank before lines that are not empty.
  std::string with_rank = of_rank_3(signalled + "\n" + exception + "\n");
  const std::string empty = "[rank3]: \n";
  with_rank.replace(with_rank.find(empty), empty.size(), "\n");
  CHECK(traceback_of(with_rank) == expected);
  CHECK(traceback_of("Traceback (most recent call last):\n  File \"a\"\n\nValueError: no\n") == "");
}

TEST_CASE("a traceback behind a zero byte is found", "[stderr_message]") {
  // Torch's handler in a data loader's process writes the whole of a C string.
  const std::string crash = "ERROR: Unexpected segmentation fault encountered in worker.\n";
  const std::string zero(1, '\0');

  CHECK(traceback_of(crash + zero + crash + zero + of_rank_3(plain)) ==
        "ValueError: no such model\n" + frames);
}

TEST_CASE("of several tracebacks the last complete one counts", "[stderr_message]") {
  const std::string earlier =
      "Traceback (most recent call last):\n  File \"a\", line 1\nKeyError: 1\n";

  CHECK(traceback_of(earlier + "retrying\n" + plain).find("ValueError: no such model\n") == 0);
  CHECK(traceback_of(plain + "Traceback (most recent call last):\n  File \"a\", li") ==
        "ValueError: no such model\n" + frames);
}

TEST_CASE("a chain of exceptions is kept as a whole", "[stderr_message]") {
  const std::string first =
      "Traceback (most recent call last):\n"
      "  File \"a.py\", line 4, in f\n"
      "    g()\n"
      "KeyError: 'lr'\n";
  const std::string second_frames =
      "Traceback (most recent call last):\n"
      "  File \"a.py\", line 9, in <module>\n"
      "    f()";
  for (const std::string link :
       {"The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:"}) {
    const std::string chain = first + "\n" + link + "\n\n" + second_frames;

    CHECK(traceback_of("noise\n" + chain + "\nRuntimeError: bad configuration\n") ==
          "RuntimeError: bad configuration\n" + chain);
    // The first one has scrolled out of what is kept.
    CHECK(traceback_of("KeyError: 'lr'\n\n" + link + "\n\n" + second_frames +
                       "\nRuntimeError: x\n") == "RuntimeError: x\n" + second_frames);
  }
}

TEST_CASE("a chain of three exceptions is kept as a whole", "[stderr_message]") {
  const std::string link =
      "\nDuring handling of the above exception, another exception occurred:\n\n";
  const std::string one = "Traceback (most recent call last):\n  File \"a.py\", line ";
  const std::string chain = one + "1, in f\nKeyError: 'lr'\n" + link + one +
                            "2, in g\nAttributeError: lr\n" + link + one + "3, in <module>";

  CHECK(traceback_of("noise\n" + chain + "\nRuntimeError: x\n") == "RuntimeError: x\n" + chain);
}

TEST_CASE("an exception is known by the form of its line", "[stderr_message]") {
  const std::string head = "Traceback (most recent call last):\n  File \"a.py\", line 1";
  for (const std::string line :
       {"KeyboardInterrupt", "ValueError:", "torch.distributed.DistBackendError: NCCL error",
        "__main__.main.<locals>.Error: x", "Http404: not found", "_Private: x"}) {
    CHECK(traceback_of(head + '\n' + line + '\n') == line + '\n' + head);
  }
  for (const std::string line : {"404: not found", "...", "ValueError was raised", "Value-Error: x",
                                 ": x", "ValueError:x"}) {
    INFO(line);
    CHECK(traceback_of(head + '\n' + line + '\n') == "");
  }
}

TEST_CASE("lines that end as Windows' do make the same message", "[stderr_message]") {
  std::string text;
  for (const char letter : plain) text += letter == '\n' ? "\r\n" : std::string(1, letter);

  CHECK(traceback_of(text) == "ValueError: no such model\n" + frames);
}

TEST_CASE("what an exception says ends before the next words, and after thirty lines",
          "[stderr_message]") {
  const std::string head = "Traceback (most recent call last):\n  File \"a.py\", line 1";
  const auto lines = [](const std::string& start, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += '\n' + start + std::to_string(i);
    return text;
  };

  CHECK(traceback_of(head + "\nValueError: x" + lines("  ", 29) + '\n') ==
        "ValueError: x" + lines("  ", 29) + '\n' + head);
  CHECK(traceback_of(head + "\nValueError: x" + lines("  ", 31) + '\n') ==
        "ValueError: x" + lines("  ", 29) + '\n' + head);
  CHECK(traceback_of(head + "\nValueError: x\n  more\n  \n  of something else\n") ==
        "ValueError: x\n  more\n" + head);
  CHECK(words_at_abort("terminate called after throwing an instance of 'E'\n  what():  x" +
                       lines("#", 31) + '\n') == "E: x" + lines("#", 30));
  CHECK(message_from_stderr("thread 'main' panicked at a.rs:1:1:" + lines("#", 31) + '\n', 101,
                            0) == "thread 'main' panicked at a.rs:1:1:" + lines("#", 29));
  // With torch's rank before each line, blank ones belong to it, too.
  const std::string said = "RuntimeError: x\n\nthe cause: y\n";
  CHECK(traceback_of(of_rank_3(head + '\n' + said)) == "RuntimeError: x\n\nthe cause: y\n" + head);
  CHECK(traceback_of(of_rank_3(head + '\n') + "[rank3]: RuntimeError: x\n[rank3]:\n" +
                     "[rank3]: the cause: y\n") == "RuntimeError: x\n\nthe cause: y\n" + head);
  CHECK(traceback_of(of_rank_3(head + "\nKeyError: 1\n" + head + "2\n")) ==
        "KeyError: 1\n" + head);  // The second one is cut off.
}

TEST_CASE("an exception's further lines belong to it", "[stderr_message]") {
  const std::string text =
      "Traceback (most recent call last):\n"
      "  File \"a.py\", line 1, in <module>\n"
      "    model.load_state_dict(s)\n"
      "RuntimeError: Error(s) in loading state_dict for Linear:\n"
      "\tMissing key(s) in state_dict: \"weight\". \n"
      "bye\n";

  CHECK(traceback_of(text).find("RuntimeError: Error(s) in loading state_dict for Linear:\n"
                                "\tMissing key(s) in state_dict: \"weight\". \nTraceback") == 0);
}

TEST_CASE("the traceback of a data loader's process is part of the message", "[stderr_message]") {
  const std::string text =
      "Traceback (most recent call last):\n"
      "  File \"a.py\", line 11, in <module>\n"
      "    for x in loader: pass\n"
      "RuntimeError: Caught RuntimeError in DataLoader worker process 0.\n"
      "Original Traceback (most recent call last):\n"
      "  File \"a.py\", line 6, in __getitem__\n"
      "    raise RuntimeError('broken sample')\n"
      "RuntimeError: broken sample\n";

  const std::string message = traceback_of(text);

  CHECK(message.find("RuntimeError: Caught RuntimeError in DataLoader worker process 0.\n") == 0);
  CHECK(message.find("\nRuntimeError: broken sample") != std::string::npos);
}

TEST_CASE("a syntax error of the program itself is found", "[stderr_message]") {
  CHECK(traceback_of("  File \"/job/a.py\", line 2\n    def f(:\n          ^\n"
                     "SyntaxError: invalid syntax\n") ==
        "SyntaxError: invalid syntax\n  File \"/job/a.py\", line 2\n    def f(:\n          ^");
  for (const std::string name : {"IndentationError", "TabError"}) {
    CHECK(traceback_of("a line\n  File \"a.py\", line 2\n\tx\n" + name + ": unexpected indent\n") ==
          name + ": unexpected indent\n  File \"a.py\", line 2\n\tx");
  }
  CHECK(traceback_of("  indented\nSyntaxError: said by a program\n") == "");
  CHECK(traceback_of(
            "a.py:1: SyntaxWarning: x\n  \"\\d\"\n  File \"a.py\", line 2\n    f(:\n      ^\n"
            "SyntaxError: invalid syntax\n") ==
        "SyntaxError: invalid syntax\n  File \"a.py\", line 2\n    f(:\n      ^");
}

TEST_CASE("what looks like a traceback but is none is left alone", "[stderr_message]") {
  CHECK(traceback_of("") == "");
  CHECK(traceback_of("no cheese\n") == "");
  CHECK(traceback_of("Traceback (most recent call last):\n") == "");
  CHECK(traceback_of("Traceback (most recent call last):\n  File \"a\"\nand then some words\n") ==
        "");
  CHECK(traceback_of("see: Traceback (most recent call last):\n  x\nError: y\n") == "");
  CHECK(traceback_of("[see Traceback (most recent call last):\n[see   x\n[see Error: y\n") == "");
  CHECK(traceback_of("a[0] Traceback (most recent call last):\na[0]   x\na[0] Error: y\n") == "");
  CHECK(traceback_of("ValueError: said without a traceback\n") == "");
}

TEST_CASE("a traceback that was survived is not what a signal killed for", "[stderr_message]") {
  CHECK(message_from_stderr(plain, 0, SIGKILL) == "");
  CHECK(message_from_stderr(plain, 0, 0) == "");
}

TEST_CASE("what torch's threads abort after an exception failed of the exception",
          "[stderr_message]") {
  const std::string expected = "ValueError: no such model\n" + frames;
  const std::string aborted = "terminate called without an active exception\n";

  CHECK(words_at_abort("epoch 1\n" + of_rank_3(plain) + aborted) == expected);
  CHECK(words_at_abort(of_rank_3(plain) + "[rank3]:[W1130 ProcessGroup.cpp] not destroyed\n" +
                       aborted) == expected);
  CHECK(words_at_abort(plain + "\n" + aborted) == expected);
  CHECK(message_from_stderr(of_rank_3(plain) + aborted, 128 + SIGABRT, 0) == expected);
  // Under faulthandler.
  CHECK(words_at_abort(of_rank_3(plain) + aborted +
                       "Fatal Python error: Aborted\n\nThread 0x00 (most recent call first):\n"
                       "  <no Python frame>\n") == expected);

  const std::string alone =
      "std::terminate was called without an exception (a std::thread that was not joined?)";
  CHECK(words_at_abort(plain + "went on without that file\n" + aborted) == alone);
  CHECK(words_at_abort(aborted + of_rank_3(plain)) == alone);  // Of another process.
  CHECK(message_from_stderr(of_rank_3(plain) + aborted, 0, SIGSEGV) == "");
}

TEST_CASE("an exception that nobody caught is known by the rank before it", "[stderr_message]") {
  const std::string expected = "ValueError: no such model\n" + frames;

  CHECK(uncaught_exception_of(3, "epoch 1\n" + of_rank_3(plain)) == expected);
  CHECK(uncaught_exception_of(3, of_rank_3(plain) + "waiting for a child\n") == expected);
  CHECK(uncaught_exception_of(2, of_rank_3(plain)) == "");  // Of a job in the job.
  CHECK(uncaught_exception_of(3, plain) == "");             // It may have been survived.
  CHECK(uncaught_exception_of(3, "") == "");
}

TEST_CASE("the last exception of a worker that lives is one that nothing follows",
          "[stderr_message]") {
  const std::string expected = "ValueError: no such model\n" + frames;
  const std::string note =
      "--------------------\nFor simplicity, JAX has removed its internal frames from the "
      "traceback "
      "of the following exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n";

  CHECK(last_exception_of(3, plain).message == expected);
  CHECK_FALSE(last_exception_of(3, plain).uncaught);
  CHECK(last_exception_of(3, plain + note).message == expected);
  CHECK(last_exception_of(3, plain + "epoch 2\n").message == "");
  CHECK(last_exception_of(3, of_rank_3(plain) + "waiting for a child\n").message == expected);
  CHECK(last_exception_of(3, of_rank_3(plain)).uncaught);
  CHECK(last_exception_of(2, of_rank_3(plain)).message == "");
}

TEST_CASE("a fatal message of glog's form is told up to its stack", "[stderr_message]") {
  const std::string fatal =
      "F1201 00:40:47.575227    2136 client.h:80] Terminating process because the JAX distributed "
      "service detected fatal errors.\nBarrier result: 1/2\n";
  const std::string stack =
      "*** Check failure stack trace: ***\n    @     0x7f43f5c40634  absl::SendToLog()\n";
  const std::string error = "E1201 00:40:47.575221    2136 agent.cc:289] Polled an error.\nmore\n";
  const std::string told = fatal.substr(0, fatal.size() - 1);

  CHECK(words_at_abort("step 1\n" + error + fatal + stack) == told);
  CHECK(words_at_abort("F1201 is the name of a file] \n") == "");
  // JAX aborts whoever an exception has ended, where the other ranks do not come to their end.
  const std::string expected = "ValueError: no such model\n" + frames;
  CHECK(words_at_abort(plain + error + fatal + stack) == expected);
  CHECK(words_at_abort(plain + fatal + stack) == expected);
  CHECK(words_at_abort(plain + "epoch 2\n" + error + fatal + stack) == told);
}

TEST_CASE("an uncaught C++ exception is told by type and text", "[stderr_message]") {
  CHECK(
      words_at_abort("start\nterminate called after throwing an instance of 'std::runtime_error'\n"
                     "  what():  cannot open data\n") == "std::runtime_error: cannot open data");
  CHECK(words_at_abort("terminate called after throwing an instance of 'c10::Error'\n"
                       "  what():  CUDA error: invalid device ordinal\n"
                       "Exception raised from f at a.cpp:3 (most recent call first):\n"
                       "frame #0: c10::Error::Error() + 0x68\n\nlater\n") ==
        "c10::Error: CUDA error: invalid device ordinal\n"
        "Exception raised from f at a.cpp:3 (most recent call first):\n"
        "frame #0: c10::Error::Error() + 0x68");
  CHECK(words_at_abort("terminate called after throwing an instance of 'int'\n") == "int");
  CHECK(words_at_abort("libc++abi: terminating due to uncaught exception of type "
                       "std::out_of_range: vector\n") == "std::out_of_range: vector");
  CHECK(words_at_abort("terminate called without an active exception\n").find("std::terminate") ==
        0);
}

TEST_CASE("a shell that reports the abort of its program is understood", "[stderr_message]") {
  CHECK(message_from_stderr("terminate called after throwing an instance of 'std::bad_alloc'\n"
                            "  what():  std::bad_alloc\nAborted (core dumped)\n",
                            134, 0)
            .find("std::bad_alloc: std::bad_alloc") == 0);
  CHECK(message_from_stderr("malloc(): corrupted top size\nAborted (core dumped)\n", 134, 0) ==
        "malloc(): corrupted top size");
  const std::string fatal =
      "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f1 (most recent call first):\n"
      "  File \"a.py\", line 1 in <module>\nSegmentation fault (core dumped)\n";
  CHECK(message_from_stderr(fatal, 139, 0).find("Fatal Python error: Segmentation fault\n") == 0);
  CHECK(message_from_stderr(fatal, 1, 0) == "");  // It ended otherwise: somebody quotes it.
  CHECK(message_from_stderr("malloc(): corrupted top size\n", 139, 0) == "");
  // What the program had survived before.
  const std::string survived =
      "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n"
      "ValueError: retried\nKilled\n";
  CHECK(message_from_stderr(survived, 137, 0) == "");
  CHECK(message_from_stderr(survived, 1, 0).find("ValueError: retried") == 0);
  CHECK(message_from_stderr(survived, 255, 0).find("ValueError: retried") == 0);
}

TEST_CASE("what the C library says before it aborts is the message", "[stderr_message]") {
  CHECK(words_at_abort("x\nprog: a.c:4: main: Assertion `n > 0' failed.\n") ==
        "prog: a.c:4: main: Assertion `n > 0' failed.");
  CHECK(words_at_abort("free(): double free detected in tcache 2\n") ==
        "free(): double free detected in tcache 2");
  for (const std::string words :
       {"*** stack smashing detected ***: terminated",
        "*** buffer overflow detected ***: terminated", "malloc(): corrupted top size",
        "double free or corruption (!prev)", "munmap_chunk(): invalid pointer",
        "corrupted size vs. prev_size", "realloc(): invalid next size"}) {
    CHECK(words_at_abort("step 3\n" + words + "\nAborted\n") == words);
  }
  CHECK(words_at_abort("a test of: Assertion `x'\n") == "");
  CHECK(words_at_abort("the step failed.\n") == "");
}

TEST_CASE("a crash under faulthandler shows the thread that crashed", "[stderr_message]") {
  const std::string text =
      "Fatal Python error: Segmentation fault\n\n"
      "Thread 0x00007f0 (most recent call first):\n  File \"q.py\", line 3 in wait\n\n"
      "Current thread 0x00007f1 (most recent call first):\n"
      "  File \"a.py\", line 1 in <module>\n\nExtension modules: x (total: 1)\n";

  CHECK(message_from_stderr(text, 0, SIGSEGV) ==
        "Fatal Python error: Segmentation fault\n"
        "Current thread 0x00007f1 (most recent call first):\n"
        "  File \"a.py\", line 1 in <module>");
}

TEST_CASE("a Rust panic is found", "[stderr_message]") {
  CHECK(message_from_stderr("thread 'main' panicked at src/main.rs:2:5:\nindex out of bounds\n"
                            "note: run with `RUST_BACKTRACE=1`\n",
                            101, 0) ==
        "thread 'main' panicked at src/main.rs:2:5:\nindex out of bounds");
  CHECK(message_from_stderr("thread 'io' panicked at a.rs:1:1:\nno\nstack backtrace:\n 0: f\n", 101,
                            0) == "thread 'io' panicked at a.rs:1:1:\nno");
  CHECK(message_from_stderr("thread 'main' has overflowed its stack\n", 101, 0) == "");
}

TEST_CASE("a long traceback keeps its exception, its begin and its end", "[stderr_message]") {
  std::string text =
      "Traceback (most recent call last):\n  File \"first.py\", line 1, in <module>\n";
  for (int i = 0; i < 200; ++i)
    text += "  File \"deep.py\", line " + std::to_string(i) + ", in f\n";
  text += "  File \"last.py\", line 1, in g\nRecursionError: too deep\n";

  const std::string message = traceback_of(text);

  CHECK(message.size() <= 2'000);
  CHECK(message.find("RecursionError: too deep\nTraceback") == 0);
  CHECK(message.find("first.py") != std::string::npos);
  CHECK(message.find("\n  [...]\n") != std::string::npos);
  CHECK(message.find("last.py") != std::string::npos);
}

TEST_CASE("a message is cut between lines, and no longer than it may be", "[stderr_message]") {
  const std::string text = "first line\nsecond one\nthird line\nfourth one\nfifth line\n";

  CHECK(without_middle(text, text.size()) == text);
  CHECK(without_middle(text, text.size() - 1) == "first line\n  [...]\nfourth one\nfifth line\n");
  CHECK(without_middle("0123456789 123456789 123456789", 29) ==
        "012345\n  [...]\n6789 123456789");         // One line.
  CHECK(without_middle(text, 3) == "\n  [...]\n");  // Not even room for the mark.

  std::string deep = "Traceback (most recent call last):\n";
  for (int i = 0; i < 200; ++i) deep += "  File \"a.py\", line " + std::to_string(i) + "\n";
  const std::string message = uncaught_exception_of(3, of_rank_3(deep + "ValueError: x\n"));
  CHECK(message.find("ValueError: x\nTraceback") == 0);
  CHECK(message.size() <= 2'000);
}

TEST_CASE("pieces of tracebacks in any order never throw", "[stderr_message][fuzz]") {
  const char* const pieces[] = {
      "Traceback (most recent call last):",
      "[rank0]: ",
      "  File \"a\"",
      "\n",
      "Original ",
      "KeyError: 1",
      " ",
      "During handling of the above exception, another exception occurred:",
      "terminate called after throwing an instance of '",
      "'",
      "  what():  ",
      "Fatal Python error: ",
      "Current thread ",
      "SyntaxError: x",
      "\xff",
      "[",
      "thread 'm' panicked at "};
  std::mt19937 random(5);
  for (int round = 0; round < 5'000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += pieces[random() % std::size(pieces)];
    for (const int signal : {0, SIGABRT, SIGSEGV}) {
      CHECK(message_from_stderr(text, signal == 0 ? 1 : 0, signal).size() <= 2'000);
    }
  }
}
