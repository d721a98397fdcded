// The parts of checkpoints that need no tensors: manifest, place in the data.
#include <sys/stat.h>

#include <limits>
#include <map>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/finite_values.h"
#include "trainer/checkpoint/resume_position.h"
#include "trainer/formats/whole_file.h"

using namespace ddprun::trainer;

namespace {

// What rank `rank` of `world` still reads of an epoch, as DistributedSampler deals it out.
std::map<std::int64_t, int> samples_left(std::int64_t size, int world, std::int64_t skipped) {
  std::map<std::int64_t, int> seen;
  const std::int64_t per_worker = (size + world - 1) / world;
  for (std::int64_t row = skipped; row < per_worker; ++row) {
    for (int rank = 0; rank < world; ++rank) {
      if (const std::int64_t sample = row * world + rank; sample < size) ++seen[sample];
    }
  }
  return seen;
}

}  // namespace

TEST_CASE("a manifest is read as it was written", "[trainer][checkpoint]") {
  const CheckpointManifest manifest{{"best.safetensors", {12, "0123456789abcdef"}},
                                    {"epoch_0001_step_0000007.safetensors", {99, "ff"}}};
  const CheckpointManifest read = parse_manifest(manifest_text(manifest));
  REQUIRE(read.size() == 2);
  CHECK(read.at("best.safetensors").bytes == 12);
  CHECK(read.at("best.safetensors").checksum == "0123456789abcdef");
  CHECK(parse_manifest(manifest_text({})).empty());
}

TEST_CASE("a manifest nested very deep is refused", "[trainer][checkpoint]") {
  // What computes its checksum would otherwise descend into it until the stack is used up.
  const std::size_t depth = 500'000;
  const std::string text =
      R"({"files":{"a":)" + std::string(depth, '[') + std::string(depth, ']') + R"(},"xxh64":""})";
  CHECK(contains(message_of<std::invalid_argument>([&] { parse_manifest(text); }), "too deep"));
}

TEST_CASE("a manifest with any flipped bit is refused or says the same", "[trainer][checkpoint]") {
  const std::string text = manifest_text({{"a.safetensors", {12, "0123456789abcdef"}}});
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      INFO("byte " << at << ", bit " << bit);
      try {
        const CheckpointManifest read = parse_manifest(changed);  // White space may change.
        REQUIRE(read.size() == 1);
        REQUIRE(read.at("a.safetensors").bytes == 12);
        REQUIRE(read.at("a.safetensors").checksum == "0123456789abcdef");
      } catch (const std::invalid_argument&) {
      }
    }
  }
}

TEST_CASE("manifests of other content are refused with the reason", "[trainer][checkpoint]") {
  const auto error = [](const std::string& text) {
    return message_of<std::invalid_argument>([&] { parse_manifest(text); });
  };
  CHECK(contains(error(""), "JSON object"));
  CHECK(contains(error("[]"), "JSON object"));
  CHECK(contains(error(R"({"files": {}})"), "xxh64"));
  CHECK(contains(error(R"({"files": {}, "xxh64": "0"})"), "checksum"));
  CHECK(contains(error(std::string(2 << 20, ' ')), "too long"));
  CHECK(error(manifest_text({}).substr(0, 10)) != "");
}

TEST_CASE("another number of workers goes on with the next sample", "[trainer][checkpoint]") {
  for (const std::int64_t size : {1, 7, 100, 101, 102}) {
    for (const int before : {1, 2, 3, 4}) {
      for (const int after : {1, 2, 3, 4}) {
        const std::int64_t rows = (size + before - 1) / before;
        for (std::int64_t row = 0; row <= rows; ++row) {
          const std::int64_t done = row * before;
          const ResumePosition position = resume_position(done, size, after);
          const auto left = samples_left(size, after, position.skipped_per_worker);
          INFO(size << " samples, " << done << " done by " << before << ", on with " << after);
          // All that is not done comes once; of what is done, only what was announced comes again.
          REQUIRE(static_cast<std::int64_t>(left.size()) ==
                  std::max<std::int64_t>(0, size - done) + position.repeated);
          REQUIRE((left.empty() || left.rbegin()->first == size - 1));
          REQUIRE(position.repeated < after);
          if (before == after || done >= size) REQUIRE(position.repeated == 0);
        }
      }
    }
  }
}

TEST_CASE("a run's end is counted from the data that is left", "[trainer][checkpoint]") {
  // 3 epochs of 100 samples on one worker, 16 at a time: 7 steps an epoch.
  CHECK(total_steps_from({0, 0, 0}, 3, 100, 16) == 21);
  CHECK(total_steps_from({10, 1, 48}, 3, 100, 16) == 21);
  CHECK(total_steps_from({21, 3, 0}, 3, 100, 16) == 21);
  CHECK(total_steps_from({7, 0, 100}, 3, 100, 16) == 21);
  // After 10 steps on one worker, two have 50 samples each: 4 steps an epoch.
  CHECK(total_steps_from({10, 1, 24}, 3, 50, 16) == 10 + 2 + 4);
  CHECK(total_steps_from({0, 0, 0}, 0, 100, 16) == 0);
  CHECK(total_steps_from({35, 5, 0}, 3, 100, 16) == 35);  // Longer than --epochs says now.
}

TEST_CASE("one infinity or NaN is found wherever it stands", "[trainer][checkpoint]") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0U, 7U, 99U, 100U}) {
      std::vector<float> values(101, -std::numeric_limits<float>::max());
      CHECK(all_finite(std::as_bytes(std::span(values)), FloatKind::Single));
      values[at] = bad;
      CHECK_FALSE(all_finite(std::as_bytes(std::span(values)), FloatKind::Single));
    }
  }
  std::vector<double> doubles{1e308, -0.0, std::numeric_limits<double>::denorm_min()};
  CHECK(all_finite(std::as_bytes(std::span(doubles)), FloatKind::Double));
  doubles.push_back(-std::numeric_limits<double>::infinity());
  CHECK_FALSE(all_finite(std::as_bytes(std::span(doubles)), FloatKind::Double));
  // 0x7bff is 65504, the greatest half, and 0x7f7f the greatest bfloat16.
  for (const auto& [kind, greatest, infinity] :
       {std::tuple(FloatKind::Half, std::uint16_t{0x7bff}, std::uint16_t{0x7c00}),
        std::tuple(FloatKind::BFloat16, std::uint16_t{0xff7f}, std::uint16_t{0xff80})}) {
    CHECK(all_finite(std::as_bytes(std::span(&greatest, 1)), kind));
    CHECK_FALSE(all_finite(std::as_bytes(std::span(&infinity, 1)), kind));
  }
  CHECK(all_finite({}, FloatKind::Single));
}

TEST_CASE("a file that gets its name when it is whole is written through no link",
          "[trainer][checkpoint]") {
  const ScratchFolder folder;
  write_bytes(folder / "others", "others");
  std::filesystem::create_symlink(folder / "others", folder / "page.new");
  CHECK(contains(message_of<FileError>([&] { require_place_for_file(folder / "page"); }),
                 "page.new: cannot be made"));
  CHECK(contains(message_of<FileError>([&] { write_whole_file(folder / "page", "page"); }),
                 "page.new: cannot be written"));
  CHECK(content_of(folder / "others") == "others");
  std::filesystem::remove(folder / "page.new");

  // The name itself may be one: it is replaced.
  std::filesystem::create_symlink(folder / "others", folder / "page");
  CHECK_NOTHROW(require_place_for_file(folder / "page"));
  write_whole_file(folder / "page", "page");
  CHECK(content_of(folder / "page") == "page");
  CHECK(content_of(folder / "others") == "others");
}

TEST_CASE("what is no file is not read", "[trainer][checkpoint]") {
  const ScratchFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const auto error = [](const std::filesystem::path& path) {
    return message_of<FileError>([&] { read_whole_file(path); });
  };
  CHECK(contains(error(folder / "pipe"), "regular file"));
  CHECK(contains(error(folder.path()), "regular file"));
  CHECK(contains(error(folder / "none"), "No such file"));
}
