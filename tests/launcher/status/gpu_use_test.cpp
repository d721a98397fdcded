// Whose a GPU is, from what the driver tells: all of it, a part, nothing.
#include "launcher/status/gpu_use.h"

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

namespace {

constexpr std::int64_t gib = 1LL << 30;

// Two GPUs; the second tells of no utilisation, as one that is divided.
std::vector<GpuReading> two_gpus() {
  return {{.uuid = "GPU-aa11", .busy = 0.75, .memory_used = 10 * gib, .memory_total = 80 * gib},
          {.uuid = "GPU-bb22", .memory_used = 4 * gib, .memory_total = 80 * gib}};
}

std::vector<int> indices(const std::vector<std::optional<GpuUse>>& uses) {
  std::vector<int> all;
  for (const auto& use : uses) all.push_back(use ? use->index : -1);
  return all;
}

}  // namespace

TEST_CASE("17.2: a worker's GPU is where the driver names it or what it has started", "[watch]") {
  auto gpus = two_gpus();
  gpus[0].running = {{.pid = 99, .bytes = gib}, {.pid = 7, .bytes = 2 * gib}};
  gpus[1].running = {{.pid = 11, .bytes = 2 * gib}, {.pid = 12, .bytes = gib}};
  const auto uses = gpus_of(gpus, {{.pids = {10, 11, 12}}, {.pids = {7}}, {.pids = {30}}});
  REQUIRE(indices(uses) == std::vector{1, 0, -1});
  CHECK(uses[0]->own_bytes == 3 * gib);
  CHECK(uses[0]->busy == -1);
  CHECK(uses[0]->memory_used == 4 * gib);
  CHECK(uses[1]->own_bytes == 2 * gib);
  CHECK(uses[1]->busy == 0.75);
  CHECK(uses[1]->memory_total == 80 * gib);
}

TEST_CASE("17.2: of several GPUs a worker is shown with the one that holds most of it", "[watch]") {
  auto gpus = two_gpus();
  gpus[0].running = {{.pid = 7, .bytes = gib}};
  gpus[1].running = {{.pid = 7, .bytes = 2 * gib}};
  CHECK(indices(gpus_of(gpus, {{.pids = {7}}})) == std::vector{1});
  // One that is told with a size is surer than one without.
  gpus[1].running[0].bytes = -1;
  const auto use = gpus_of(gpus, {{.pids = {7}}});
  CHECK(indices(use) == std::vector{0});
  gpus[0].running.clear();
  CHECK(gpus_of(gpus, {{.pids = {7}}})[0]->own_bytes == -1);
}

TEST_CASE("17.2: in a container, where no pid is known, the GPU is the one at the worker's place",
          "[watch]") {
  auto gpus = two_gpus();
  gpus[0].running = {{.pid = 40'001, .bytes = gib}};  // Of the host's pid namespace.
  const auto at = [&](const std::string& place, bool opened = true) {
    return indices(gpus_of(gpus, {{.pids = {7}, .opened_device = opened, .place = place}}))[0];
  };
  CHECK(at("0") == 0);
  CHECK(at("1") == 1);
  CHECK(at("GPU-bb") == 1);
  CHECK(at("2") == -1);
  CHECK(at("") == -1);
  CHECK(at("MIG-77") == -1);
  CHECK(at("1x") == -1);
  // A program that computes on the CPU has no GPU, though there are some.
  CHECK(at("0", false) == -1);
  CHECK(gpus_of(gpus, {{.pids = {7}, .opened_device = true, .place = "0"}})[0]->own_bytes == -1);
}

TEST_CASE("17.2: nobody is guessed at where the driver names others of the job", "[watch]") {
  auto gpus = two_gpus();
  gpus[1].running = {{.pid = 8, .bytes = gib}};
  CHECK(indices(gpus_of(gpus, {{.pids = {7}, .opened_device = true, .place = "0"},
                               {.pids = {8}, .opened_device = true, .place = "1"}})) ==
        std::vector{-1, 1});
  CHECK(indices(gpus_of({}, {{.pids = {7}, .opened_device = true, .place = "0"}})) ==
        std::vector{-1});
}
