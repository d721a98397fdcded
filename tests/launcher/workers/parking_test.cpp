// What a worker and the launcher say to each other of parking, in every order that there is.
#include "launcher/workers/parking.h"

#include <string>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

TEST_CASE("16.3: a worker parks once it has said that it can, however its words are cut",
          "[parking]") {
  const auto [said, can_park, parked] =
      GENERATE(table<std::vector<std::string>, bool, bool>({{{}, false, false},
                                                            {{"k"}, true, false},
                                                            {{"k\n"}, true, true},
                                                            {{"k", "\n"}, true, true},
                                                            {{"\n"}, false, false},
                                                            {{"\nk"}, true, false},
                                                            {{"?k", "x\n"}, true, true},
                                                            {{"kk", "", "\n\n"}, true, true}}));
  Parking parking;
  for (const std::string& part : said) parking.hear(part);
  CHECK(parking.can_park() == can_park);
  CHECK(parking.parked() == parked);
  CHECK(parking.hang_up() == parked);
  CHECK_FALSE(parking.can_park());
  CHECK_FALSE(parking.parked());
}

namespace {

// One order of events, with what must hold whatever came before.
class ParkingOrder {
 public:
  static constexpr int events = 8;

  void happens(int event) {
    switch (event) {
      case 0:
        parking_.hear("k");
        break;
      case 1:
        parking_.hear("\n");
        break;
      case 2: {
        const bool was_parked = parking_.parked();
        CHECK(parking_.hang_up() == was_parked);
        break;
      }
      case 3: {
        const bool due = !parking_.parked() && words_ == 0;
        CHECK(parking_.take_word() == due);
        words_ += due ? 1 : 0;
        break;
      }
      case 4: {
        const bool due = parking_.parked() && news_ == 0;
        CHECK(parking_.take_news() == due);
        news_ += due ? 1 : 0;
        break;
      }
      case 5:
      case 6: {
        const bool out_of_time = event == 6;
        const bool late = out_of_time && parking_.can_park() && !asked_;
        CHECK(parking_.ask_to_end(out_of_time) == late);
        late_ = late_ || late;
        asked_ = true;
        break;
      }
      case 7: {
        if (!parking_.parked()) return;
        parking_.give_rank();
        CHECK(parking_.can_park());  // It said so once, and may say so again.
        CHECK_FALSE(parking_.parked());
        words_ = news_ = 0;
        asked_ = late_ = false;
        break;
      }
    }
    CHECK((parking_.can_park() || !parking_.parked()));
    CHECK(parking_.asked() == asked_);
    CHECK(parking_.late() == late_);
  }

 private:
  Parking parking_;
  int words_ = 0;
  int news_ = 0;
  bool asked_ = false;
  bool late_ = false;
};

}  // namespace

TEST_CASE("16.3: in any order each word is said once an attempt, and none to who has parked",
          "[parking]") {
  constexpr int length = 5;
  int orders = 1;
  for (int i = 0; i < length; ++i) orders *= ParkingOrder::events;
  for (int number = 0; number < orders; ++number) {
    ParkingOrder order;
    for (int i = 0, rest = number; i < length; ++i, rest /= ParkingOrder::events) {
      order.happens(rest % ParkingOrder::events);
    }
  }
}
