// NCCL's id on its way through the store.
#include "worker/nccl/nccl_types.h"

#include <cstring>

#include "tests/testing/catch.h"
#include "tests/worker/nccl/fake_device.h"

using namespace ddprun::worker;

TEST_CASE("the id of NCCL travels as text, and what is none is refused", "[worker][cuda]") {
  ncclUniqueId id{};
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  const std::string text = to_text(id);
  const ncclUniqueId read = parse_nccl_id(text);
  CHECK(std::memcmp(&read, &id, sizeof id) == 0);

  for (const std::string& wrong :
       {std::string("-"), text.substr(1), text + "0", "x" + text.substr(1), "0x" + text.substr(2),
        text.substr(0, text.size() - 1) + " "}) {
    INFO(wrong);
    CHECK_THROWS_AS(parse_nccl_id(wrong), CommunicatorError);
  }
}
