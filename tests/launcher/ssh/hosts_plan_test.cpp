// What a launcher would do for each host, before any of them is asked.
#include "launcher/ssh/hosts_plan.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "launcher/machine/local_addresses.h"
#include "rendezvous/host/host_name.h"
#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::testing::check_contains;
using ddprun::testing::TemporaryFolder;

namespace {

Host named(const std::string& login) {
  return {.login = login, .name = login.substr(login.find('@') + 1)};
}

// This process in another folder, as its shell has it.
class InFolder {
 public:
  InFolder(const std::string& folder, const std::string& pwd)
      : before_(std::filesystem::current_path()) {
    const char* told = std::getenv("PWD");
    if (told != nullptr) told_before_ = told;
    std::filesystem::current_path(folder);
    ::setenv("PWD", pwd.c_str(), 1);
  }
  ~InFolder() {
    std::filesystem::current_path(before_);
    ::setenv("PWD", told_before_.c_str(), 1);
  }
  InFolder(const InFolder&) = delete;

 private:
  std::filesystem::path before_;
  std::string told_before_;
};

}  // namespace

TEST_CASE("the folder is the one that the shell names while that is so", "[hosts][hosts_plan]") {
  const TemporaryFolder folder;
  const std::string real = std::filesystem::canonical(folder.path());
  std::filesystem::create_directory(real + "/real");
  std::filesystem::create_directory(real + "/other");
  std::filesystem::create_directory_symlink(real + "/real", real + "/link");
  const auto seen = [&](const std::string& pwd) {
    const InFolder there(real + "/real", pwd);
    return own_folder();
  };

  CHECK(seen(real + "/link") == real + "/link");
  CHECK(seen(real + "/other") == real + "/real");  // A program has changed it since.
  CHECK(seen(real + "/nothing") == real + "/real");
  CHECK(seen(".") == real + "/real");
  CHECK(seen("") == real + "/real");
}

TEST_CASE("no ssh is needed to where this program runs, as this user", "[hosts][hosts_plan]") {
  for (const std::string& name : {std::string("localhost"), std::string("127.0.0.1"),
                                  std::string("::1"), rendezvous::own_host_name()}) {
    CHECK(is_this_machine(named(name)));
    CHECK_FALSE(is_this_machine(named("somebody@" + name)));
  }
  for (const std::string& address : own_addresses()) CHECK(is_this_machine(named(address)));
  CHECK_FALSE(is_this_machine(named("another-host")));
  CHECK_FALSE(is_this_machine(named("192.0.2.1")));
}

TEST_CASE("the copy is this program, in whole blocks", "[hosts][hosts_plan]") {
  const std::string program = testing::content_of("/proc/self/exe");

  const auto copy = own_copy();

  CHECK(copy->size() % copy_block_bytes == 0);
  REQUIRE(copy->size() >= program.size());
  CHECK(copy->size() < program.size() + copy_block_bytes);
  CHECK(copy->compare(0, program.size(), program) == 0);
  CHECK(std::all_of(copy->begin() + static_cast<std::ptrdiff_t>(program.size()), copy->end(),
                    [](char byte) { return byte == '\0'; }));
}

TEST_CASE("a host's launcher is started here, or over ssh", "[hosts][hosts_plan]") {
  OverSsh over_ssh;
  over_ssh.ssh_options = {"-p", "2222"};
  const std::string copy(3 * copy_block_bytes, '\0');

  CHECK(node_command(over_ssh, named("localhost"), "/opt/ddprun", &copy) ==
        std::vector<std::string>{"/opt/ddprun", node_argument});
  CHECK(node_command(over_ssh, named("localhost"), "/opt/ddprun", nullptr, {"a", "b"}) ==
        std::vector<std::string>{"/opt/ddprun", "a", "b"});
  CHECK(node_command(over_ssh, named("me@far"), "/opt/ddprun", nullptr) ==
        ssh_command({"-p", "2222"}, "me@far", remote_command("/opt/ddprun", {})));
  CHECK(node_command(over_ssh, named("far"), "/opt/ddprun", &copy, {"a"}) ==
        ssh_command({"-p", "2222"}, "far", remote_command("/opt/ddprun", 3, {"a"})));
}

TEST_CASE("the plan has a line for each host, and shows no value", "[hosts][hosts_plan]") {
  LaunchOptions options;
  options.program_name = "train";
  options.over_ssh.hosts = {named("localhost"), named("me@far")};
  options.over_ssh.workers = {"1", "gpu"};
  options.over_ssh.exports = {"TOKEN=not for the screen"};
  options.notes = {"something"};

  const std::string plan = hosts_plan_text(options, "/opt/ddprun");

  check_contains(plan, "program   train\nnodes     2 nodes, started over ssh from here\n");
  check_contains(plan, "node 0    localhost: 1 worker, no ssh\n");
  check_contains(plan, "node 1    far: gpu workers, ssh ");
  check_contains(plan, "\nvariable  TOKEN\n");
  check_contains(plan, "\nnote: something\n");
  CHECK_FALSE(testing::contains(plan, "screen"));
}
