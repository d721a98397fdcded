// The bytes of TensorBoard's event files, compared with what its own writer makes.
#include "trainer/report/tensorboard_records.h"

#include "tests/testing/catch.h"
#include "trainer/report/crc32c.h"

using namespace ddprun::trainer;

namespace {

std::string hex(const std::string& bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[byte & 15];
  }
  return text;
}

}  // namespace

TEST_CASE("the checksum is that of the iSCSI standard", "[trainer][tensorboard]") {
  // RFC 3720, appendix B.4.
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aaU);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43U);
  CHECK(crc32c("123456789") == 0xe3069283U);
  CHECK(crc32c("") == 0);
}

// The expected bytes were made by tensorboard 2.21.0 (event_file_writer.EventFileWriter, and
// summary.writer.record_writer for the framing).
TEST_CASE("records have the bytes of TensorBoard's own writer", "[trainer][tensorboard]") {
  CHECK(hex(version_record(1.5)) ==
        "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  CHECK(hex(session_start_record({2.5, 301})) ==
        "100000000000000095fbfe1809000000000000044010ad023a0208019daf86af");
  const std::vector<Scalar> scalars{{"train/loss", 0.5F}, {"train/lr", 1e-3F}};
  CHECK(hex(scalars_record({1.7e9, 70'000}, scalars)) ==
        "33000000000000000ca720560900000040fc54d94110f0a2042a240a110a0a747261696e2f6c6f73"
        "73150000003f0a0f0a08747261696e2f6c72156f12833ab96b3da5");
  CHECK(hex(text_record({3, 7}, "run", "**a**")) ==
        "2f000000000000006d5d1d5009000000000000084010072a220a200a0372756e420f080712041202"
        "080142052a2a612a2a4a080a060a0474657874deb52455");
}

TEST_CASE("a record of no bytes and one of many are framed", "[trainer][tensorboard]") {
  CHECK(tfrecord("").size() == 16);
  const std::string large = tfrecord(std::string(70'000, 'x'));
  CHECK(large.size() == 70'016);
  CHECK(hex(large.substr(0, 8)) == "7011010000000000");
}

TEST_CASE("a later event file has a later name", "[trainer][tensorboard]") {
  const std::string first = event_file_name({}, 1'700'000'000, "node1", 999);
  CHECK(first == "events.out.tfevents.1700000000.node1.999.0");

  SECTION("in the same second") {
    CHECK(event_file_name({first}, 1'700'000'000, "node1", 1000) ==
          "events.out.tfevents.1700000001.node1.1000.0");
  }
  SECTION("when the clock was put back") {
    CHECK(event_file_name({"x", first}, 1'600'000'000, "node1", 1) > first);
  }
  SECTION("whatever else lies there") {
    CHECK(event_file_name({"events.out.tfevents.", "events.out.tfevents.x",
                           "events.out.tfevents.99999999999999999999.n.1.0", "notes"},
                          1'700'000'000, "node1", 999) == first);
  }
}
