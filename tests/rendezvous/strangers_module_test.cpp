// Which libraries beside a program are opened as its own.
#include "rendezvous/strangers_module.h"

#include <fstream>
#include <string>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using ddprun::rendezvous::is_strangers_module;
using ddprun::testing::TemporaryFolder;

TEST_CASE("a module of another user is a stranger's where anybody may put files", "[rendezvous]") {
  if (::geteuid() != 0) DDPRUN_SKIP("to give a file away one must be root");
  constexpr uid_t other_user = 54'321;
  const TemporaryFolder folder;
  const std::string own = folder / "own.so", given = folder / "given.so", link = folder / "link.so";
  std::ofstream(own) << "own";
  std::ofstream(given) << "given";
  REQUIRE(::chown(given.c_str(), other_user, other_user) == 0);
  REQUIRE(::symlink(own.c_str(), link.c_str()) == 0);
  REQUIRE(::lchown(link.c_str(), other_user, other_user) == 0);

  REQUIRE(::chmod(folder.path().c_str(), 01777) == 0);
  CHECK_FALSE(is_strangers_module(own));
  CHECK(is_strangers_module(given));
  CHECK(is_strangers_module(link));  // To ours now, and to what later?
  CHECK_FALSE(is_strangers_module(folder / "nothing.so"));

  REQUIRE(::chmod(folder.path().c_str(), 0775) == 0);  // Of a group that works together.
  CHECK_FALSE(is_strangers_module(given));
}
