// A folder of checkpoints keeps what is not its own, and what another process is at work on.
#include "trainer/checkpoint/checkpoint_folder.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>

#include "tests/testing/as_nobody.h"
#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/folder_claim.h"

using namespace ddprun::trainer;

namespace {

const Safetensors& contents() {
  static const Safetensors made{{{"a", torch::ones({2})}}, {}};
  return made;
}

using Steps = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

// The names that the manifest on the disk lists.
Names listed(const std::filesystem::path& folder) {
  Names names;
  for (const auto& [name, file] : parse_manifest(content_of(folder / "manifest.json"))) {
    names.push_back(name);
  }
  return names;
}

Steps saved_steps(const CheckpointFolder& folder) {
  Steps steps;
  for (const CheckpointName& name : folder.list()) steps.push_back(name.step);
  return steps;
}

}  // namespace

TEST_CASE("a folder that cannot be read is named with the reason", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  std::filesystem::permissions(scratch.path(), std::filesystem::perms::owner_exec);
  std::string message;
  {
    const ddprun::testing::AsNobody nobody;
    message = message_of<UnusableFolderError>(
        [&] { CheckpointFolder(scratch.path(), 2, CheckpointFolder::Access::ReadOnly); });
  }
  std::filesystem::permissions(scratch.path(), std::filesystem::perms::owner_all);
  // Another one where the folder of all tests is closed, too.
  CHECK(contains(message, "--checkpoint-dir: "));
  CHECK(contains(message, scratch.path().string()));
  CHECK(contains(message, ": Permission denied"));
}

TEST_CASE("one process at a time saves in a folder, and any number reads it",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  {
    CheckpointFolder saving(scratch.path());
    saving.save({0, 1}, contents());
    write_bytes(scratch / "epoch_0000_step_0000002.safetensors.partial", "being written");

    const auto message = message_of<CheckpointError>([&] { CheckpointFolder(scratch.path()); });
    CHECK(contains(message, "another process"));
    CHECK(contains(message, scratch.path().string()));

    CheckpointFolder reading(scratch.path(), 2, CheckpointFolder::Access::ReadOnly);
    CHECK(reading.list().size() == 1);
    CHECK_NOTHROW(reading.read({0, 1}));
    CHECK_FALSE(reading.take({}));
    CHECK(reading.set_aside({0, 1}) == reading.path_of({0, 1}));
    CHECK(std::filesystem::exists(reading.path_of({0, 1})));
    CHECK(content_of(scratch / "epoch_0000_step_0000002.safetensors.partial") == "being written");
  }
  CHECK_NOTHROW(CheckpointFolder(scratch.path()));  // The lock went with its holder.

  const auto missing = scratch / "missing";
  const auto message = message_of<CheckpointError>(
      [&] { CheckpointFolder(missing, 2, CheckpointFolder::Access::ReadOnly); });
  CHECK(contains(message, missing.string()));
  CHECK_FALSE(std::filesystem::exists(missing));
}

TEST_CASE("a step has one checkpoint, the last that was saved of it", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path(), 2);
  const auto steps = [&] {
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    for (const CheckpointName& name : folder.list()) found.emplace_back(name.epoch, name.step);
    return found;
  };
  using Pairs = decltype(steps());
  folder.save({0, 9}, contents());
  folder.save({0, 10}, contents());
  folder.save({1, 10}, contents());  // After its validation.
  CHECK(steps() == Pairs{{0, 9}, {1, 10}});
  folder.save({1, 10}, contents());
  CHECK(steps() == Pairs{{0, 9}, {1, 10}});
  CHECK_NOTHROW(folder.read({1, 10}));
  const auto last = scratch / "last.safetensors";
  CHECK(folder.take_back({1, 10}) == scratch / "epoch_0001_step_0000010.safetensors.corrupt");
  CHECK(steps() == Pairs{{0, 9}});
  CHECK(std::filesystem::read_symlink(last) == "epoch_0000_step_0000009.safetensors");
  CHECK(listed(scratch.path()) == Names{"epoch_0000_step_0000009.safetensors"});
  folder.take_back({0, 9});
  CHECK_FALSE(std::filesystem::is_symlink(last));
}

TEST_CASE("a checkpoint is written through no link", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  const auto others = scratch / "others";
  write_bytes(others, "others");
  std::filesystem::create_symlink(others, scratch / "writable.partial");
  CHECK(contains(message_of<CheckpointError>([&] { CheckpointFolder folder(scratch.path()); }),
                 "cannot write to"));
  std::filesystem::remove(scratch / "writable.partial");
  CheckpointFolder folder(scratch.path());
  for (const char* name :
       {"epoch_0000_step_0000009.safetensors.partial", "manifest.json.partial"}) {
    std::filesystem::create_symlink(others, scratch / name);
    CHECK_THROWS_AS(folder.save({0, 9}, contents()), CheckpointError);
    std::filesystem::remove(scratch / name);
  }
  folder.save({0, 9}, contents());
  CHECK_NOTHROW(folder.read({0, 9}));
  CHECK(content_of(others) == "others");
}

TEST_CASE("the best weights are listed, and are no checkpoint", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  CHECK_FALSE(folder.has_best());
  CHECK(folder.save_best(contents()) == scratch / "best.safetensors");
  CHECK(folder.has_best());
  CHECK(folder.read_best().tensors.size() == 1);
  CHECK(listed(scratch.path()) == Names{"best.safetensors"});
  const auto checksum_of = [&](const char* name) {
    return parse_manifest(content_of(scratch / "manifest.json")).at(name).checksum;
  };
  CHECK_FALSE(folder.lists(checksum_of("best.safetensors")));

  const Safetensors others{{{"a", torch::zeros({2})}}, {}};
  CHECK(folder.save({0, 1}, others) == folder.path_of({0, 1}));
  CHECK(folder.lists(checksum_of("epoch_0000_step_0000001.safetensors")));
  CHECK_FALSE(folder.lists("0123456789abcdef"));
}

TEST_CASE("a checkpoint that is put aside is known as damaged, and listed no more",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  folder.save({0, 1}, contents());
  CHECK_FALSE(folder.has_damaged());
  const auto aside = folder.set_aside({0, 1});
  CHECK(std::filesystem::exists(aside));
  CHECK(folder.has_damaged());
  folder.save({0, 2}, contents());
  CHECK(listed(scratch.path()) == Names{"epoch_0000_step_0000002.safetensors"});
  CHECK(contains(message_of<CheckpointError>([&] {
                   folder.set_aside({0, 3});
                 }),
                 "cannot rename the damaged " + folder.path_of({0, 3}).string()));
}

TEST_CASE("a file in the place of a listed one is told from it by every reader",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch / "one"), other(scratch / "other");
  folder.save({0, 1}, contents());
  other.save({0, 1}, {{{"a", torch::zeros({2})}}, {}});
  std::filesystem::copy_file(other.path_of({0, 1}), folder.path_of({0, 1}),
                             std::filesystem::copy_options::overwrite_existing);
  const CheckpointFolder reading(scratch / "one", 2, CheckpointFolder::Access::ReadOnly);
  for (const CheckpointFolder* reader : {&reading, &std::as_const(folder)}) {
    CHECK_THROWS_AS(reader->read({0, 1}), UnlistedCheckpointError);
  }
}

TEST_CASE("what cannot be written is said, and the manifest knows no file that is not there",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  folder.save({0, 1}, contents());
  folder.save({0, 2}, contents());
  const auto error = [&] {
    return message_of<CheckpointError>([&] { folder.save({0, 2}, contents()); });
  };
  std::filesystem::remove(folder.path_of({0, 2}));
  std::filesystem::create_directory(folder.path_of({0, 2}));
  CHECK(contains(error(), "cannot rename " + folder.path_of({0, 2}).string() + ".partial to "));
  CHECK(listed(scratch.path()) == Names{"epoch_0000_step_0000001.safetensors"});
  std::filesystem::remove(folder.path_of({0, 2}));

  const auto manifest = scratch / "manifest.json", partial = scratch / "manifest.json.partial";
  std::filesystem::create_directory(partial);
  CHECK(contains(error(), "cannot write " + manifest.string() + ": Is a directory"));
  std::filesystem::remove(partial);
  std::filesystem::remove(manifest);
  std::filesystem::create_directory(manifest);
  CHECK(contains(error(), "cannot write " + manifest.string() + ": Is a directory"));
  std::filesystem::remove(manifest);
  CHECK(error().empty());
}

TEST_CASE("16.3: a folder is waited for whose holder may be dying", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  using Access = CheckpointFolder::Access;
  auto holder = std::make_optional<CheckpointFolder>(scratch.path());
  CHECK_THROWS_AS(CheckpointFolder(scratch.path(), 2, Access::Save, std::chrono::milliseconds(1)),
                  CheckpointError);
  auto next = std::async(std::launch::async, [&] {
    CheckpointFolder(scratch.path(), 2, Access::Save, std::chrono::hours(1));
  });
  holder.reset();
  CHECK_NOTHROW(next.get());
}

TEST_CASE("16.3: a folder that is of no use now may be so later", "[trainer][checkpoint]") {
  using Access = CheckpointFolder::Access;
  const ScratchFolder scratch;
  const auto place = scratch / "checkpoints";
  std::ofstream(place) << "no folder";
  CHECK_THROWS_AS(CheckpointFolder(place), UnusableFolderError);
  CheckpointFolder later(place, 2, Access::SaveLater);
  CHECK_THROWS_AS(later.take({}), UnusableFolderError);
  std::filesystem::remove(place);
  later.take({});
  CHECK(later.list().empty());
  CHECK_FALSE(later.take({}));
  CHECK_THROWS_AS(CheckpointFolder(place), CheckpointError);  // It is taken.
  const CheckpointFolder at_once(scratch / "free", 2, Access::SaveLater);
  CHECK_THROWS_AS(CheckpointFolder(scratch / "free"), CheckpointError);
}

TEST_CASE("16.3: a folder that is still another's is made ready when it is taken",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  using Access = CheckpointFolder::Access;
  auto holder = std::make_optional<CheckpointFolder>(scratch.path());
  CheckpointFolder later(scratch.path(), 2, Access::SaveLater);
  holder->save({0, 1}, contents());
  CHECK(contains(message_of<CheckpointError>([&] {
                   later.take_back({0, 1});
                 }),
                 "--checkpoint-dir: another process on this host"));
  CHECK(std::filesystem::exists(holder->path_of({0, 1})));
  const auto partial = scratch / "epoch_0000_step_0000002.safetensors.partial";
  write_bytes(partial, "being written");
  CHECK_THROWS_AS(later.take(std::chrono::milliseconds(1)), CheckpointError);
  bool asked = false;
  CHECK_THROWS_AS(later.take(std::chrono::hours(1), [&] { return asked = true; }), CheckpointError);
  CHECK(asked);
  CHECK(std::filesystem::exists(partial));

  holder.reset();
  later.take(std::chrono::milliseconds(0));
  CHECK_FALSE(std::filesystem::exists(partial));
  CHECK_NOTHROW(later.read({0, 1}));  // The manifest as its holder left it.
  CHECK_THROWS_AS(CheckpointFolder(scratch.path()), CheckpointError);
}

TEST_CASE("a folder that goes while it is saved in is made again", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  const auto place = scratch / "checkpoints", moved = scratch / "moved";
  for (const bool removed : {true, false}) {
    CheckpointFolder folder(place);
    folder.save({0, 1}, contents());
    CHECK_FALSE(folder.take({}));
    if (removed) {
      std::filesystem::remove_all(place);
    } else {
      std::filesystem::rename(place, moved);
    }
    const auto message = message_of<CheckpointError>([&] { folder.save({0, 2}, contents()); });
    CHECK(contains(message, place.string()));

    CHECK(folder.take({}));
    REQUIRE(folder.warnings().size() == 1);
    CHECK(contains(folder.warnings()[0],
                   place.string() + " was removed or renamed while this run saved in it"));
    folder.save({0, 2}, contents());
    CHECK(saved_steps(folder) == Steps{2});
    CHECK(parse_manifest(content_of(place / "manifest.json")).size() == 1);
    CHECK_THROWS_AS(CheckpointFolder(place), CheckpointError);  // It is taken.
    CHECK_FALSE(folder.take({}));
  }
  CHECK(saved_steps(CheckpointFolder(moved)) == Steps{1, 2});
}

TEST_CASE("a run knows its checkpoints again, however often it has looked for them in vain",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  const auto place = scratch / "checkpoints", moved = scratch / "moved";
  CheckpointFolder folder(place);
  folder.save({0, 1}, contents());
  std::filesystem::rename(place, moved);
  write_bytes(place, "no folder");
  for (int again = 0; again < 2; ++again) {
    CHECK_THROWS_AS(folder.take({}), UnusableFolderError);
  }
  std::filesystem::remove(place);
  std::filesystem::rename(moved, place);
  CHECK(folder.take({}));
  CHECK(saved_steps(folder) == Steps{1});
  CHECK_NOTHROW(folder.take_back({0, 1}));
}

TEST_CASE("what another run saves in the place of a folder that went is left alone",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  const auto place = scratch / "checkpoints", moved = scratch / "moved";
  CheckpointFolder folder(place);
  folder.save({0, 1}, contents());
  std::filesystem::rename(place, moved);
  const Safetensors others{{{"a", torch::zeros({2})}}, {}};
  auto other = std::make_optional<CheckpointFolder>(place);
  other->save({0, 1}, others);
  const auto partial = place / "epoch_0000_step_0000002.safetensors.partial";
  write_bytes(partial, "being written");
  const auto manifest = content_of(place / "manifest.json");
  const auto is_as_it_was = [&] {
    return content_of(partial) == "being written" &&
           content_of(place / "manifest.json") == manifest &&
           saved_steps(CheckpointFolder(place, 2, CheckpointFolder::Access::ReadOnly)) == Steps{1};
  };

  CHECK_THROWS_AS(folder.take_back({0, 1}), CheckpointError);
  const auto late = message_of<CheckpointError>([&] { folder.save({0, 3}, contents()); });
  CHECK(contains(late, place.string() + " was removed or renamed"));
  CHECK(is_as_it_was());
  // Nobody waits for one that has come later.
  const auto taken = message_of<CheckpointError>([&] { folder.take(std::chrono::hours(1)); });
  CHECK(contains(taken, "was removed or renamed"));
  CHECK(contains(taken, "another process on this host saves checkpoints in " + place.string()));
  CHECK(is_as_it_was());
  other.reset();
  for (int again = 0; again < 2; ++again) {
    const auto not_ours = message_of<CheckpointError>([&] { folder.take({}); });
    CHECK(contains(not_ours, "epoch_0000_step_0000001.safetensors"));
    CHECK(contains(not_ours, "is not of this run"));
    CHECK_THROWS_AS(folder.take_back({0, 1}), CheckpointError);
    CHECK(is_as_it_was());
  }

  std::filesystem::remove_all(place);
  std::filesystem::create_directory(place);
  write_bytes(place / "best.safetensors", "somebody's");
  CHECK(contains(message_of<CheckpointError>([&] { folder.take({}); }), "best.safetensors"));

  std::filesystem::remove_all(place);
  std::filesystem::copy(moved, place);
  CHECK(folder.take({}));  // Its own ones, as after a new mount.
  folder.save({0, 2}, contents());
  CHECK(saved_steps(folder) == Steps{1, 2});
}

TEST_CASE("files of other programs in the folder stay", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  write_bytes(scratch / "film.partial", "a download");
  write_bytes(scratch / "epoch_1.partial", "somebody's");
  const Names own = {"best.safetensors.partial", "last.safetensors.partial",
                     "manifest.json.partial", "writable.partial"};
  for (const std::string& name : own) write_bytes(scratch / name, "cut");
  write_bytes(scratch / "best.safetensors.old", "a copy");
  write_bytes(scratch / "manifest.json", "{\"name\": \"a web page\"}");

  CheckpointFolder folder(scratch.path());
  REQUIRE(folder.warnings().size() == 1);
  CHECK(contains(folder.warnings()[0], "manifest.json.corrupt"));
  for (const std::string& name : own) CHECK_FALSE(std::filesystem::exists(scratch / name));
  CHECK(content_of(scratch / "best.safetensors.old") == "a copy");
  folder.save({0, 1}, contents());
  folder.save({0, 2}, contents());

  CHECK(content_of(scratch / "film.partial") == "a download");
  CHECK(content_of(scratch / "epoch_1.partial") == "somebody's");
  CHECK(content_of(scratch / "manifest.json.corrupt") == "{\"name\": \"a web page\"}");
  CHECK(parse_manifest(content_of(scratch / "manifest.json")).size() == 2);
}

TEST_CASE("a folder in place of the manifest is renamed too", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  std::filesystem::create_directory(scratch / "manifest.json");

  CheckpointFolder folder(scratch.path());
  REQUIRE(folder.warnings().size() == 1);
  CHECK(contains(folder.warnings()[0], "not a regular file"));
  folder.save({0, 1}, contents());

  CHECK(std::filesystem::is_directory(scratch / "manifest.json.corrupt"));
  CHECK(std::filesystem::is_regular_file(scratch / "manifest.json"));
}

TEST_CASE("a checkpoint that cannot be opened is not called damaged", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  // Fails for root too, as no permission does for others.
  std::filesystem::create_symlink("epoch_0000_step_0000001.safetensors", folder.path_of({0, 1}));

  CHECK_THROWS_AS(folder.read({0, 1}), SafetensorsAccessError);
  write_bytes(folder.path_of({0, 2}), "torn");
  CHECK_THROWS_AS(folder.read({0, 2}), SafetensorsError);
  CHECK(message_of<SafetensorsAccessError>([&] {
          try {
            folder.read({0, 2});
          } catch (const SafetensorsAccessError&) {
            throw;
          } catch (const SafetensorsError&) {  // As it should be.
          }
        }).empty());
}

TEST_CASE("a name that is too long for the system is refused by name", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  const auto path = scratch / std::string(300, 'x');
  const auto message = message_of<CheckpointError>([&] { const CheckpointFolder folder(path); });
  CHECK(contains(message, "--checkpoint-dir"));
  CHECK(contains(message, path.string()));
}

TEST_CASE("16.3: a folder is claimed by one at a time, until that one counts as dead",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  const auto folder = scratch.path() / "new";
  auto first = std::make_optional<FolderClaim>(folder, std::chrono::milliseconds{0});
  const auto claim = folder / "saving.claim";
  CHECK(std::filesystem::exists(claim));
  std::atomic<bool> released{false};
  auto second = std::async(std::launch::async, [&] {
    const FolderClaim next(folder, std::chrono::hours{1});
    return released && std::filesystem::exists(claim);
  });
  released = true;
  first.reset();
  CHECK(second.get());
  CHECK_FALSE(std::filesystem::exists(claim));

  std::ofstream(claim) << "";  // Of a process that was killed.
  { const FolderClaim next(folder, std::chrono::milliseconds{0}); }
  CHECK_FALSE(std::filesystem::exists(claim));
}

TEST_CASE("of two that wait behind a dead claim the second waits for the first's",
          "[trainer][checkpoint]") {
  using namespace std::chrono_literals;
  const ScratchFolder scratch;
  const auto claim = scratch / "saving.claim";
  write_bytes(claim, "");
  std::filesystem::last_write_time(claim, std::filesystem::last_write_time(claim) - 1h);
  const auto dead = ClaimFile::at(claim);
  REQUIRE(dead);
  ClaimWatch first(20s), second(20s);
  const ClaimWatch::Time began{};
  for (ClaimWatch* const watch : {&first, &second}) {
    CHECK_FALSE(watch->is_dead(dead, began));
    CHECK_FALSE(watch->is_dead(dead, began + 19s));
    CHECK(watch->is_dead(dead, began + 20s));  // Both have seen so before either removes it.
  }

  CHECK(remove_claim(claim, *dead));
  const FolderClaim of_first(scratch.path(), 0ms);
  const auto live = ClaimFile::at(claim);
  REQUIRE(live);
  CHECK(remove_claim(claim, *dead));  // The second's, which comes too late.

  CHECK(ClaimFile::at(claim) == live);
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()), {}) == 1);
  CHECK_FALSE(second.is_dead(live, began + 21s));
  CHECK_FALSE(second.is_dead(live, began + 40s));
  CHECK(second.is_dead(live, began + 41s));
}

TEST_CASE("a claim that cannot be removed is waited for, and then none is made",
          "[trainer][checkpoint]") {
  using std::filesystem::perms;
  constexpr std::chrono::milliseconds no_time{0};
  const ScratchFolder scratch;
  const auto claim = scratch / "saving.claim";
  std::filesystem::create_directory(claim);  // Somebody's.
  { const FolderClaim next(scratch.path(), no_time); }
  CHECK(std::filesystem::is_directory(claim));

  std::filesystem::remove(claim);
  write_bytes(claim, "");
  const auto dead = ClaimFile::at(claim);
  std::filesystem::permissions(
      scratch.path(),
      perms::all & ~(perms::owner_write | perms::group_write | perms::others_write));
  {
    const ddprun::testing::AsNobody nobody;
    const FolderClaim next(scratch.path(), no_time);
  }
  std::filesystem::permissions(scratch.path(), perms::owner_all);
  CHECK(ClaimFile::at(claim) == dead);
}

TEST_CASE("who was taken for dead leaves the next one's claim alone", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  const auto claim = scratch / "saving.claim";
  auto slow = std::make_optional<FolderClaim>(scratch.path(), std::chrono::milliseconds{0});
  std::filesystem::rename(claim, scratch / "moved");
  write_bytes(claim, "");
  const auto others = ClaimFile::at(claim);

  slow.reset();
  REQUIRE(others);
  CHECK(ClaimFile::at(claim) == others);
}
