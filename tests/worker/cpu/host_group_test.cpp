// Memory that ranks of one host map of each other: whose it is, how much of it, and until when.
#include "worker/cpu/host_group.h"

#include <array>
#include <optional>
#include <utility>

#include "tests/testing/catch.h"

using namespace ddprun::worker;

namespace {

// Two ranks, both of this process.
struct Pair {
  explicit Pair(std::size_t buffer_bytes = 1) {
    std::array<SharedSegment, 2> own;
    for (SharedSegment& segment : own) {
      segment = SharedSegment::create(HostGroup::segment_bytes(buffer_bytes));
    }
    std::array<SharedSegment, 2> theirs = {SharedSegment::open(own[1].address()),
                                           SharedSegment::open(own[0].address())};
    std::vector<SharedSegment> of_0, of_1;
    of_0.push_back(std::move(own[0]));
    of_0.push_back(std::move(theirs[0]));
    of_1.push_back(std::move(theirs[1]));
    of_1.push_back(std::move(own[1]));
    a.emplace(0, std::move(of_0), buffer_bytes);
    b.emplace(1, std::move(of_1), buffer_bytes);
  }

  std::optional<HostGroup> a, b;
  std::string lack;
};

unsigned char* bytes_at(void* data) { return static_cast<unsigned char*>(data); }

}  // namespace

TEST_CASE("memory is shared once every peer has mapped it, and no byte beyond", "[worker][host]") {
  Pair pair;
  REQUIRE(pair.a->begin_allocation(5'000, pair.lack) == 1);
  REQUIRE(pair.b->begin_allocation(5'000, pair.lack) == 1);
  CHECK_FALSE(pair.a->acknowledged_by(1));
  REQUIRE(pair.a->map_allocation(1, 1));
  REQUIRE(pair.b->map_allocation(0, 1));
  pair.b->acknowledge(0b10);
  CHECK_FALSE(pair.a->acknowledged_by(1));
  pair.b->acknowledge(0b01);
  CHECK(pair.a->acknowledged_by(1));
  pair.a->acknowledge(0b10);
  CHECK(pair.b->acknowledged_by(0));
  unsigned char* const data = bytes_at(pair.a->allocation_data(0, 1));
  REQUIRE(data != nullptr);
  CHECK(pair.a->find(data, 5'000).allocation == 0);

  pair.a->finish_allocation(1);

  data[4'999] = 7;
  CHECK(bytes_at(pair.b->allocation_data(0, 1))[4'999] == 7);
  CHECK(bytes_at(pair.b->allocation_data(1, 1))[4'999] == 0);
  CHECK(pair.a->find(data, 5'000).allocation == 1);
  CHECK(pair.a->find(data + 10, 4'990).offset == 10);
  CHECK(pair.a->find(data + 10, 4'991).allocation == 0);
  CHECK(pair.a->find(data - 1, 1).allocation == 0);
}

TEST_CASE("released memory is found no more, and unmapped by peers when they next allocate",
          "[worker][host]") {
  Pair pair;
  pair.a->begin_allocation(1, pair.lack);
  REQUIRE(pair.b->map_allocation(0, 1));
  pair.a->finish_allocation(1);
  void* const data = pair.a->allocation_data(0, 1);

  pair.a->release_allocation(1);

  CHECK(pair.a->find(data, 1).allocation == 0);
  CHECK(pair.a->allocation_data(0, 1) == nullptr);
  CHECK(pair.b->allocation_data(0, 1) != nullptr);
  pair.b->begin_allocation(1, pair.lack);
  CHECK(pair.b->allocation_data(0, 1) == nullptr);
}

TEST_CASE("what cannot be shared is offered to nobody", "[worker][host]") {
  Pair pair;
  CHECK_FALSE(pair.b->map_allocation(0, 1));
  REQUIRE(pair.a->begin_allocation(1, pair.lack) == 1);
  REQUIRE(pair.b->map_allocation(0, 1));
  CHECK(pair.lack.empty());

  const std::uint32_t refused = pair.a->begin_allocation(std::size_t{1} << 50, pair.lack);

  CHECK(refused == 2);
  CHECK_FALSE(pair.lack.empty());
  CHECK(pair.a->allocation_data(0, refused) == nullptr);
  CHECK_FALSE(pair.b->map_allocation(0, refused));  // Not the one before.
}

TEST_CASE("of very many allocations the last are not shared", "[worker][host]") {
  Pair pair;
  std::uint32_t number = 0;
  while (number + 1 < HostGroup::allocations_max) {
    if (number > 0) pair.a->release_allocation(number);
    number = pair.a->begin_allocation(1, pair.lack);
  }
  CHECK(pair.a->allocation_data(0, number) != nullptr);
  CHECK(pair.b->map_allocation(0, number));

  number = pair.a->begin_allocation(1, pair.lack);

  CHECK(number == HostGroup::allocations_max);
  CHECK(pair.a->allocation_data(0, number) == nullptr);
  CHECK_FALSE(pair.b->map_allocation(0, number));
  pair.a->release_allocation(number);
}

TEST_CASE("a rank's buffers are apart, and end where its segment does", "[worker][host]") {
  for (const std::size_t bytes : {1UL, 4'096UL, 4'097UL}) {
    const Pair pair(bytes);
    const std::array<unsigned char*, 4> buffers = {pair.b->contribution(0, 2),
                                                   pair.b->contribution(0, 3), pair.b->result(0, 2),
                                                   pair.b->result(0, 3)};
    const auto apart = static_cast<std::size_t>(buffers[1] - buffers[0]);
    CHECK(apart == (bytes + 4'095) / 4'096 * 4'096);
    for (const std::size_t i : {1UL, 2UL}) CHECK(buffers[i] + apart == buffers[i + 1]);
    CHECK(pair.b->contribution(0, 4) == pair.b->contribution(0, 2));
    // The first is in a page of its own behind what the ranks tell each other.
    const std::size_t told = HostGroup::segment_bytes(bytes) - 4 * apart;
    CHECK(told == HostGroup::segment_bytes(0));
  }
}
