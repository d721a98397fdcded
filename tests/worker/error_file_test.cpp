// The error file: each case lets a child process die and reads what it left.
#include "worker/error_file.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::worker;
namespace fs = std::filesystem;

namespace recorded_stacks {

// Their names are what the test looks for; extern, and never inlined.
[[gnu::noinline]] void first_step() { record_error_with_stack("a call was refused"); }
[[gnu::noinline]] void second_step() { record_error_with_stack("another was"); }

}  // namespace recorded_stacks

namespace {

using Folder = ddprun::testing::TemporaryFolder;

// Runs `die` in a child with handlers installed; returns its wait status.
int run_child(const fs::path& error_file, const std::function<void()>& die) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(99);
    WorkerEnv env;
    env.error_file = error_file.string();
    install_error_handlers(env);
    die();
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

nlohmann::json read_json(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  INFO(text.str());
  return nlohmann::json::parse(text.str());
}

[[gnu::noinline]] void throw_out_of_range() { throw std::out_of_range("batch 12 of 10"); }

}  // namespace

TEST_CASE("16.3: a worker in its next attempt dies into that one's error file, however it dies",
          "[worker][error_file][recovery]") {
  for (const bool by_signal : {false, true}) {
    const Folder folder;
    std::vector<fs::path> files;
    for (int attempt = 0; attempt < 4; ++attempt) {
      files.push_back(folder / ("error" + std::to_string(attempt)));
    }
    run_child(files[0], [&] {
      for (const fs::path& file : {files[1], files[2], files[3]}) {
        ::setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), 1);
        follow_error_file();
      }
      if (by_signal) std::raise(SIGSEGV);
      record_error("late");
    });
    for (int attempt = 0; attempt < 3; ++attempt) {
      CHECK_FALSE(fs::exists(files[static_cast<std::size_t>(attempt)]));
    }
    const std::string message = read_json(files[3])["message"]["message"];
    CHECK(message == (by_signal ? "SIGSEGV: invalid memory access" : "late"));
  }
}

TEST_CASE("a worker that has lived through what it recorded records again in its next attempt",
          "[worker][error_file][recovery]") {
  const Folder folder;
  const fs::path first = folder / "first", second = folder / "second";
  run_child(first, [&] {
    record_error("a call was refused");
    ::setenv("TORCHELASTIC_ERROR_FILE", second.c_str(), 1);
    follow_error_file();
    record_error("the disk is full");
  });
  CHECK(read_json(first)["message"]["message"] == "a call was refused");
  CHECK(read_json(second)["message"]["message"] == "the disk is full");
}

TEST_CASE("an error that is recorded before it is thrown comes with its own stack",
          "[worker][error_file]") {
  const Folder folder;
  const fs::path first = folder / "first", second = folder / "second";
  run_child(first, [&] {
    recorded_stacks::first_step();
    ::setenv("TORCHELASTIC_ERROR_FILE", second.c_str(), 1);
    follow_error_file();
    recorded_stacks::second_step();
  });
  const std::string before = read_json(first)["message"]["extraInfo"]["py_callstack"];
  const std::string after = read_json(second)["message"]["extraInfo"]["py_callstack"];
  CHECK(before.find("first_step") != std::string::npos);
  CHECK(after.find("second_step") != std::string::npos);
  CHECK(after.find("first_step") == std::string::npos);
// Their own functions stand before those that are left out.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(before.find("first_step") < before.find('\n'));
#endif
  CHECK(read_json(second)["message"]["message"] == "another was");
}

TEST_CASE("a recorded error is a torch error file with message and time", "[worker][error_file]") {
  const Folder folder;
  const fs::path file = folder / "error.json";
  const int status = run_child(file, [] {
    record_error("rank 3: \"disk\\full\"\n\x01 \xc3\xa9 ok");
    record_error("a consequence");
    ::_exit(7);
  });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
  const auto json = read_json(file);
  CHECK(json["message"]["message"] == "rank 3: \"disk\\full\"\n\x01 \xc3\xa9 ok");
  const auto seconds = std::stoll(json["message"]["extraInfo"]["timestamp"].get<std::string>());
  CHECK(seconds > 1'600'000'000);
  CHECK(json["message"]["extraInfo"]["timestamp_ns"].get<long long>() / 1'000'000'000 == seconds);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("17.1: what the user gave wrong is told apart from other errors",
          "[worker][error_file]") {
  const Folder folder;
  const fs::path file = folder / "error.json";
  run_child(file, [] {
    record_usage_error("unknown option --x");
    record_error("a consequence");
  });
  const auto wrong = read_json(file)["message"];
  CHECK(wrong["message"] == "unknown option --x");
  CHECK(wrong["extraInfo"]["usage_error"] == true);

  run_child(file, [] {
    record_error("the disk is full");
    record_usage_error("a consequence");
  });
  CHECK_FALSE(read_json(file)["message"]["extraInfo"].contains("usage_error"));
}

TEST_CASE("text that is not UTF-8 still gives valid JSON", "[worker][error_file]") {
  const Folder folder;
  const fs::path file = folder / "error.json";
  run_child(file, [] { record_error("caf\xe9"); });
  CHECK(read_json(file)["message"]["message"] == "caf\xc3\xa9");

  // What only looks like UTF-8: overlong forms of '/', half of a surrogate pair, beyond Unicode.
  for (const char* text : {"\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xc3"}) {
    run_child(file, [&] { record_error(text); });
    const auto json = read_json(file);
    CHECK(json["message"]["message"].get<std::string>().size() == 2 * std::strlen(text));
  }
  for (const char* text : {"\xc2\x80", "\xe2\x82\xac", "\xed\x9f\xbf", "\xf0\x9f\x98\x80"}) {
    run_child(file, [&] { record_error(text); });
    CHECK(read_json(file)["message"]["message"] == text);
  }
}

TEST_CASE("an uncaught exception is recorded with its type and text", "[worker][error_file]") {
  const Folder folder;
  const fs::path file = folder / "error.json";
  // No catch may surround the throw, so it leaves a function that lets nothing out.
  const int status = run_child(file, [] { []() noexcept { throw_out_of_range(); }(); });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
  const auto json = read_json(file);
  CHECK(json["message"]["message"] == "std::out_of_range: batch 12 of 10");
  CHECK(json["message"]["extraInfo"]["py_callstack"].get<std::string>().find("[0x") !=
        std::string::npos);
}

TEST_CASE("a crash of a process that the worker forked is not the worker's",
          "[worker][error_file]") {
  const Folder folder;
  const fs::path file = folder / "error.json";
  for (const bool worker_fails : {false, true}) {
    run_child(file, [&] {
      for (void (*die)() : {+[] { std::abort(); }, +[] { record_error("a helper's"); }}) {
        const pid_t helper = ::fork();
        if (helper == 0) {
          die();
          ::_exit(0);
        }
        ::waitpid(helper, nullptr, 0);
      }
      if (worker_fails) record_error("the worker's own");
    });
    CHECK(fs::exists(file) == worker_fails);
  }
  CHECK(read_json(file)["message"]["message"] == "the worker's own");
}

TEST_CASE("a fatal signal is recorded with the stack and still kills", "[worker][error_file]") {
  const Folder folder;
  const fs::path file = folder / "error.json";
  const int status = run_child(file, [] { ::raise(SIGSEGV); });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
  const auto json = read_json(file);
  CHECK(json["message"]["message"] == "SIGSEGV: invalid memory access");
  CHECK(json["message"]["extraInfo"]["py_callstack"].get<std::string>().find("[0x") !=
        std::string::npos);
}

TEST_CASE("threads that fail at the same moment leave one whole error file",
          "[worker][error_file]") {
  const auto at_once = [](void (*fail)()) {
    std::barrier together(4);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&]() noexcept {
        together.arrive_and_wait();
        fail();
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  const struct {
    void (*fail)();
    int signal;
    std::string message;
  } ways[] = {{+[] { ::raise(SIGBUS); }, SIGBUS, "SIGBUS: memory that cannot be reached"},
              {+[] { throw_out_of_range(); }, SIGABRT, "std::out_of_range: batch 12 of 10"},
              {+[] {
                 record_error("the disk is full");
                 ::_exit(9);
               },
               0, "the disk is full"}};
  for (const auto& way : ways) {
    INFO(way.message);
    for (int run = 0; run < 10; ++run) {
      const Folder folder;
      const int status = run_child(folder / "error.json", [&] { at_once(way.fail); });
      CHECK((way.signal != 0 ? WIFSIGNALED(status) && WTERMSIG(status) == way.signal
                             : WIFEXITED(status) && WEXITSTATUS(status) == 9));
      REQUIRE(fs::exists(folder / "error.json"));
      CHECK(read_json(folder / "error.json")["message"]["message"] == way.message);
      CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
    }
  }
}

// The sanitizers check the write before the processor does.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a write to address zero is recorded", "[worker][error_file]") {
  const Folder folder;
  const fs::path file = folder / "error.json";
  const int status = run_child(file, [] {
    volatile int* volatile nowhere = nullptr;
    *nowhere = 1;
  });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
  CHECK(read_json(file)["message"]["message"] == "SIGSEGV: invalid memory access");
}
#endif

TEST_CASE("an error file that cannot be written changes nothing else", "[worker][error_file]") {
  const int status =
      run_child("/nonexistent/error.json", [] { ::_exit(record_error("lost") ? 1 : 9); });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 9));
}

TEST_CASE("a cause that could not be written counts as lost whoever records it again",
          "[worker][error_file]") {
  const int status = run_child("/nonexistent/error.json", [] {
    record_error("lost");
    ::_exit(record_usage_error("the same, on its way out") ? 1 : 9);
  });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 9));
}

TEST_CASE(
    "what is recorded before the handlers are there is said to be lost, and loses nothing else",
    "[worker][error_file]") {
  const Folder folder;
  const fs::path file = folder / "error.json";
  const pid_t child = ::fork();
  if (child == 0) {
    if (record_error("too early")) ::_exit(1);
    WorkerEnv env;
    env.error_file = file.string();
    install_error_handlers(env);
    ::_exit(record_error("in time") ? 0 : 2);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(read_json(file)["message"]["message"] == "in time");
}

TEST_CASE("without an error file nothing is written", "[worker][error_file]") {
  const int status = run_child("", [] { ::_exit(record_error("nowhere") ? 5 : 1); });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 5));
}
