// What of the driver's reasons is told, and how.
#include "launcher/machine/gpu_clock.h"

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

TEST_CASE("16.3: what slows a GPU down is told by its most telling reason", "[machine]") {
  struct Case {
    std::uint64_t reasons;
    Slowdown slowdown;
    const char* text;
  };
  constexpr std::uint64_t idle = 0x1, setting = 0x2;
  const Case cases[] = {
      {0, Slowdown::None, ""},
      {idle | setting, Slowdown::None, ""},
      {0x4, Slowdown::PowerLimit, "by its power limit: 780 of 1980 MHz, 92 C"},
      {0x4 | 0x20, Slowdown::Heat, "by heat: 780 of 1980 MHz, 92 C"},
      {0x8 | 0x40, Slowdown::Heat, "by heat: 780 of 1980 MHz, 92 C"},
      {0x8 | 0x80, Slowdown::PowerBrake, "by the power brake: 780 of 1980 MHz, 92 C"},
      {0x8, Slowdown::Hardware, "by its hardware: 780 of 1980 MHz, 92 C"},
  };
  for (const Case& one : cases) {
    const GpuClock clock{slowdown_of(one.reasons), 780, 1980, 92};
    INFO(one.reasons << " " << one.text);
    CHECK(clock.slowdown == one.slowdown);
    CHECK(slowdown_text(clock) == one.text);
    CHECK(is_slowed(clock) == (one.slowdown > Slowdown::PowerLimit));
    CHECK(slowdown_named(name_of(clock.slowdown)) == clock.slowdown);
  }
  CHECK(slowdown_text({}) == "");
  CHECK(slowdown_text({Slowdown::Heat, 780, -1, 92}) == "by heat: 92 C");
  CHECK(slowdown_text({Slowdown::Heat, 780, 1980, -1}) == "by heat: 780 of 1980 MHz");
  CHECK(slowdown_text({Slowdown::Heat, -1, 1980, -1}) == "by heat");
  CHECK(slowdown_named("another version's") == Slowdown::Unknown);
}
