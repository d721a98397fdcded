// Writing beside training: what is saved is the moment of the save, and errors are not lost.
#include "trainer/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <optional>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/finite_tensor.h"
#include "trainer/models/model_zoo.h"
#include "trainer/report/meters.h"

using namespace ddprun::trainer;

namespace {

Safetensors two_tensors(const torch::Tensor& a, const torch::Tensor& b) {
  return {{{"a", a}, {"b", b}}, {}};
}

std::vector<CheckpointFile> checkpoint_at(std::int64_t step, Safetensors contents) {
  std::vector<CheckpointFile> files;
  files.push_back({CheckpointName{0, step}, std::move(contents)});
  return files;
}

// A write to this checkpoint waits until the pipe is read: that holds it in flight.
std::filesystem::path make_pipe_for(const ScratchFolder& scratch, std::int64_t step) {
  const auto pipe = scratch / (CheckpointName{0, step}.file_name() + ".partial");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  return pipe;
}

}  // namespace

TEST_CASE("what training changes after a save is not in the file", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  torch::Tensor a = torch::arange(3'000'000, torch::kFloat32);
  torch::Tensor b = torch::arange(24).reshape({2, 3, 4}).permute({2, 0, 1});  // Not in C order.
  const torch::Tensor a_before = a.clone(), b_before = b.clone();
  CheckpointWriter writer(&folder, 1 << 20, torch::kCPU);  // Too little: it must grow.

  writer.save(checkpoint_at(1, two_tensors(a, b)));
  a.fill_(-1);
  b.fill_(-1);
  writer.finish();

  const Safetensors read = folder.read({0, 1});
  CHECK(torch::equal(read.tensors[0].second, a_before));
  CHECK(torch::equal(read.tensors[1].second, b_before));
  REQUIRE(writer.take_finished().size() == 1);
  CHECK(writer.take_finished().empty());
}

TEST_CASE("one save makes a checkpoint and the best weights", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  torch::Tensor a = torch::ones({1000}), b = torch::zeros({5});
  {
    CheckpointWriter writer(&folder, 0, torch::kCPU);
    auto files = checkpoint_at(1, two_tensors(a, b));
    files.push_back({{}, Safetensors{{{"a", a.clone()}}, {}}, /*is_copy=*/true});
    CHECK(snapshot_bytes({{"a", a}, {"again", a}}) == snapshot_bytes({{"a", a}}));
    writer.save(std::move(files));
    a.zero_();
  }  // Waits for the write.
  CHECK(torch::equal(folder.read({0, 1}).tensors[0].second, torch::ones({1000})));
  CHECK(torch::equal(read_safetensors(scratch / "best.safetensors").tensors[0].second,
                     torch::ones({1000})));
}

TEST_CASE("what is no number is found in every kind of tensor and every layout",
          "[trainer][checkpoint]") {
  for (const auto type : {torch::kFloat16, torch::kBFloat16, torch::kFloat32, torch::kFloat64}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      const torch::Tensor all = torch::ones({2, 3, 4, 4}, type);
      for (const torch::Tensor& tensor :
           {all, all.contiguous(torch::MemoryFormat::ChannelsLast), all.transpose(0, 1)}) {
        torch::Tensor ruined = tensor.clone();
        CHECK(all_finite(ruined));
        ruined[-1][-1][-1][-1] = bad;
        CHECK_FALSE(all_finite(ruined));
      }
      // One with holes in its memory: what lies in them is not looked at.
      torch::Tensor wide = torch::ones({4, 4}, type);
      wide[0][3] = bad;
      CHECK(all_finite(wide.narrow(1, 0, 3)));
      CHECK_FALSE(all_finite(wide.narrow(1, 1, 3)));
    }
  }
  CHECK(all_finite(torch::full({2}, std::numeric_limits<std::int64_t>::max(), torch::kInt64)));
  CHECK(all_finite(torch::empty({0})));
}

TEST_CASE("weights that are no numbers are not saved, and the checkpoint before stays",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  CheckpointWriter writer(&folder, 0, torch::kCPU);
  torch::Tensor a = torch::ones({2, 3}), b = torch::ones({5}, torch::kBFloat16);
  writer.save(checkpoint_at(1, two_tensors(a, b)));
  writer.finish();
  for (torch::Tensor& bad : std::vector<torch::Tensor>{a.select(1, 2), b}) {
    bad.fill_(-INFINITY);
    writer.save(checkpoint_at(2, two_tensors(a, b)));
    const std::string message = message_of<CheckpointError>([&] { writer.finish(); });
    CHECK(contains(message, "step 2 is not saved: '"));
    CHECK(contains(message, bad.dim() == 1 && bad.size(0) == 5 ? "'b'" : "'a'"));
    bad.fill_(1);
  }
  REQUIRE(folder.list().size() == 1);
  CHECK(folder.list()[0].step == 1);
}

TEST_CASE("16.3: the first write waits for a folder that is still another's",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  using Access = CheckpointFolder::Access;
  auto holder = std::make_optional<CheckpointFolder>(scratch.path());
  CheckpointFolder folder(scratch.path(), 2, Access::SaveLater);
  torch::Tensor a = torch::ones({1000}), b = torch::zeros({5});
  {
    CheckpointWriter writer(&folder, 0, torch::kCPU);
    writer.save(checkpoint_at(1, two_tensors(a, b)));  // Does not wait.
    a.zero_();
    CHECK(folder.list().empty());
    holder.reset();
    writer.finish();
  }
  CHECK(torch::equal(folder.read({0, 1}).tensors[0].second, torch::ones({1000})));

  // Who leaves in the meantime does not wait, and its checkpoint is not there.
  CheckpointFolder next(scratch.path(), 2, Access::SaveLater);
  CheckpointWriter(&next, 0, torch::kCPU).save(checkpoint_at(2, two_tensors(a, b)));
  CHECK(next.list().size() == 1);
}

TEST_CASE("a save waits for the write before it", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  const auto pipe = make_pipe_for(scratch, 1);
  CheckpointWriter writer(&folder, 0, torch::kCPU);
  writer.save(checkpoint_at(1, two_tensors(torch::ones({9}), torch::ones({9}))));
  CHECK(writer.take_finished().empty());

  std::thread reader([&] {
    std::ifstream file(pipe, std::ios::binary);
    while (file.get() != EOF) {
    }
  });
  // A pipe is no file: it cannot be written at a given place, which is an error of the first save
  // that the second reports and makes up for.
  const SaveStall stall =
      writer.save(checkpoint_at(2, two_tensors(torch::ones({9}), torch::ones({9}))));
  reader.join();

  REQUIRE(stall.failed_before.has_value());
  CHECK(contains(stall.failed_before->reason, "epoch_0000_step_0000001.safetensors.partial"));
  CHECK(contains(stall.failed_before->reason, "Illegal seek"));
  CHECK(writer.settle());
  CHECK_FALSE(writer.failed().has_value());  // Reported once.
  REQUIRE(folder.list().size() == 1);
  CHECK(folder.list()[0].step == 2);
}

TEST_CASE("after a write that failed the next one is made, with the best weights of before",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  CheckpointWriter writer(&folder, 0, torch::kCPU);
  const torch::Tensor ones = torch::ones({9});
  writer.save(checkpoint_at(1, two_tensors(ones, ones)));
  const std::string obstacle = scratch / "best.safetensors.partial";
  std::filesystem::create_directories(obstacle + "/in the way");

  auto files = checkpoint_at(2, two_tensors(ones, ones));
  files.push_back({{}, Safetensors{{{"a", torch::full({9}, 7)}}, {}}, /*is_copy=*/true});
  writer.save(std::move(files));
  CHECK_FALSE(writer.settle());
  REQUIRE(writer.failed().has_value());
  CHECK(contains(writer.failed()->reason, "best.safetensors.partial"));
  CHECK(writer.failed()->in_a_row == 1);
  CHECK(folder.list().size() == 1);  // Not the one that tells of the best.
  CHECK_FALSE(writer.save_if_idle(checkpoint_at(3, two_tensors(ones, ones))));

  CHECK(writer.save(checkpoint_at(4, two_tensors(ones, ones))).failed_before.has_value());
  CHECK_FALSE(writer.settle());
  CHECK(writer.failed()->in_a_row == 2);
  std::filesystem::remove_all(obstacle);
  CHECK(writer.save(checkpoint_at(5, two_tensors(ones, ones))).failed_before.has_value());
  writer.finish();
  CHECK(folder.list().back().step == 5);
  CHECK(torch::equal(read_safetensors(scratch / "best.safetensors").tensors[0].second,
                     torch::full({9}, 7)));
}

TEST_CASE("a write that failed is tried again at once, then with pauses, and not for ever",
          "[trainer][checkpoint]") {
  CHECK(retry_after({.in_a_row = 1}) == Retry::Now);
  CHECK(retry_after({.hopeless = true, .in_a_row = 1}) == Retry::Never);
  CHECK(retry_after({.in_a_row = 2, .failing_s = 5, .ago_s = 4}) == Retry::Later);
  CHECK(retry_after({.in_a_row = 2, .failing_s = 15, .ago_s = 14}) == Retry::Now);
  CHECK(retry_after({.in_a_row = 9, .failing_s = 200, .ago_s = 1}) == Retry::Never);
  // The first one may have been seen late.
  CHECK(retry_after({.in_a_row = 1, .failing_s = 200, .ago_s = 200}) == Retry::Now);
}

TEST_CASE("nothing makes up for weights that are ruined", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  CheckpointWriter writer(&folder, 0, torch::kCPU);
  const torch::Tensor ones = torch::ones({9});
  writer.save(checkpoint_at(1, two_tensors(torch::full({9}, NAN), ones)));
  CHECK_FALSE(writer.settle());
  CHECK(writer.failed()->hopeless);
  CHECK_THROWS_AS(writer.save(checkpoint_at(2, two_tensors(ones, ones))), RuinedWeightsError);
}

TEST_CASE("a write that fails is reported at the end", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch / "checkpoints");
  CheckpointWriter writer(&folder, 0, torch::kCPU);
  std::filesystem::remove_all(scratch / "checkpoints");
  write_bytes(scratch / "checkpoints", "no folder");
  writer.save(checkpoint_at(1, two_tensors(torch::ones({9}), torch::ones({9}))));
  const std::string message = message_of<CheckpointError>([&] { writer.finish(); });
  CHECK(contains(message, "cannot make the folder " + (scratch / "checkpoints").string()));
  CHECK(writer.take_warnings().empty());
}

TEST_CASE("a write makes a folder again that has gone, and says so", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  const auto place = scratch / "checkpoints";
  CheckpointFolder folder(place);
  CheckpointWriter writer(&folder, 0, torch::kCPU);
  const torch::Tensor ones = torch::ones({9});
  for (const std::int64_t step : {1, 2}) {
    if (step == 2) std::filesystem::remove_all(place);
    // With the best weights, which lie second in an empty folder.
    auto files = checkpoint_at(step, two_tensors(ones, ones));
    files.push_back({{}, Safetensors{{{"a", ones}}, {}}, /*is_copy=*/true});
    writer.save(std::move(files));
    writer.finish();
  }
  const auto warnings = writer.take_warnings();
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], place.string() + " was removed or renamed"));
  CHECK(writer.take_warnings().empty());
  REQUIRE(folder.list().size() == 1);
  CHECK(folder.list()[0].step == 2);
  CHECK(folder.has_best());
}

TEST_CASE("a file or a manifest that was changed is refused", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  const Safetensors one{{{"a", torch::ones({9})}}, {}}, two{{{"a", torch::zeros({9})}}, {}};
  {
    CheckpointFolder folder(scratch.path());
    folder.save({0, 1}, one);
    folder.save({0, 2}, two);
  }
  const auto path = [&](std::int64_t step) {
    return scratch / CheckpointName{0, step}.file_name();
  };
  CHECK(std::filesystem::read_symlink(scratch / "last.safetensors") ==
        CheckpointName{0, 2}.file_name());

  // A sound file that is another one than the manifest says.
  std::filesystem::copy_file(path(1), path(2), std::filesystem::copy_options::overwrite_existing);
  {
    const CheckpointFolder changed(scratch.path());
    CHECK(changed.warnings().empty());
    CHECK_NOTHROW(changed.read({0, 1}));
    CHECK(contains(message_of<SafetensorsError>([&] { changed.read({0, 2}); }), "manifest.json"));
  }

  // Without a sound manifest a file's own checksum counts.
  write_bytes(scratch / "manifest.json", "{}");
  {
    CheckpointFolder without(scratch.path());
    REQUIRE(without.warnings().size() == 1);
    CHECK(contains(without.warnings()[0], "manifest.json"));
    CHECK_NOTHROW(without.read({0, 2}));
    without.save({0, 3}, one);
  }
  CHECK(CheckpointFolder(scratch.path()).warnings().empty());

  std::filesystem::remove(path(3));
  const CheckpointFolder missing(scratch.path());
  REQUIRE(missing.warnings().size() == 1);
  CHECK(contains(missing.warnings()[0], path(3).string()));
}

TEST_CASE("as many checkpoints stay as were asked for, and two at least", "[trainer][checkpoint]") {
  for (const auto& [asked, kept] : {std::pair(1U, 2U), {2U, 2U}, {3U, 3U}}) {
    const ScratchFolder scratch;
    CheckpointFolder folder(scratch.path(), asked);
    for (std::int64_t step = 1; step <= 5; ++step) {
      folder.save({0, step}, Safetensors{{{"a", torch::ones({2})}}, {}});
    }
    REQUIRE(folder.list().size() == kept);
    CHECK(folder.list().back().step == 5);
    CHECK(parse_manifest(content_of(scratch / "manifest.json")).size() == kept);
  }
}

// Run by hand: test_trainer "[stall]". ResNet-50 with momentum is 205 MB.
TEST_CASE("how long a step stands still for a checkpoint of ResNet-50", "[.][stall]") {
  const ScratchFolder scratch;
  CheckpointFolder folder(scratch.path());
  const auto model = make_model({"resnet50", StemChoice::ImageNet, 3, 224, 1000});
  NamedTensors tensors;
  for (const auto& entry : model->named_parameters()) {
    tensors.emplace_back(entry.key(), entry.value());
    tensors.emplace_back("optimizer/" + entry.key(), torch::zeros_like(entry.value()));
  }
  for (const auto& entry : model->named_buffers()) tensors.emplace_back(entry.key(), entry.value());
  CheckpointWriter writer(&folder, snapshot_bytes(tensors), torch::kCPU);
  writer.finish();
  for (std::int64_t step = 1; step <= 10; ++step) {
    const SaveStall stall = writer.save(checkpoint_at(step, {tensors, {}}));
    Stopwatch watch;
    writer.finish();
    std::cout << snapshot_bytes(tensors) / 1'000'000 << " MB: waited "
              << 1e3 * (stall.waited_s + stall.copied_s) << " ms, written in " << 1e3 * watch.lap()
              << " ms" << std::endl;
  }
}
