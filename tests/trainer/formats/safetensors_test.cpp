// The safetensors format: what is written is read back, and nothing damaged is believed.
#include "trainer/formats/safetensors.h"

#include <random>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"

using namespace ddprun::trainer;

namespace {

std::string with_header(const std::string& header, const std::string& data,
                        std::size_t claimed_bytes = 0) {
  const std::uint64_t length = claimed_bytes == 0 ? header.size() : claimed_bytes;
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i) & 0xff);
  return file + header + data;
}

std::string error_of(const std::string& file) {
  return message_of<SafetensorsError>([&] { parse_safetensors(file, "file"); });
}

Safetensors sample() {
  return {{{"a", torch::arange(6, torch::kFloat32).reshape({2, 3})},
           {"b", torch::tensor(7, torch::kInt64)},
           {"c", torch::ones({4}, torch::kBFloat16)},
           {"empty", torch::empty({0, 5})}},
          {{"epoch", "3"}, {"text", "a \"quoted\" word"}}};
}

}  // namespace

TEST_CASE("tensors and metadata come back as they were written", "[trainer][safetensors]") {
  const ScratchFolder folder;
  Safetensors written = sample();
  written.tensors.emplace_back("turned", torch::arange(6).reshape({2, 3}).t());  // Not packed.

  write_safetensors(folder / "f", written);
  const Safetensors read = read_safetensors(folder / "f");

  REQUIRE(read.tensors.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(read.tensors[i].first == written.tensors[i].first);
    CHECK(read.tensors[i].second.scalar_type() == written.tensors[i].second.scalar_type());
    CHECK(torch::equal(read.tensors[i].second, written.tensors[i].second));
  }
  CHECK(read.metadata.at("epoch") == "3");
  CHECK(read.metadata.at("text") == "a \"quoted\" word");
}

TEST_CASE("tensors of every dtype come back", "[trainer][safetensors]") {
  const ScratchFolder folder;
  using Named = std::pair<const char*, torch::ScalarType>;
  for (const auto& [name, type] :
       {Named{"F64", torch::kFloat64}, Named{"F32", torch::kFloat32}, Named{"F16", torch::kFloat16},
        Named{"BF16", torch::kBFloat16}, Named{"I64", torch::kInt64}, Named{"I32", torch::kInt32},
        Named{"I16", torch::kInt16}, Named{"I8", torch::kInt8}, Named{"U8", torch::kUInt8},
        Named{"BOOL", torch::kBool}}) {
    INFO(name);
    const torch::Tensor written = torch::tensor({1, 0, 1}).to(type);
    write_safetensors(folder / "f", {{{"a", written}}, {}});
    const torch::Tensor read = read_safetensors(folder / "f").tensors.at(0).second;
    CHECK(read.scalar_type() == type);
    CHECK(torch::equal(read, written));
  }
}

TEST_CASE("a file that is cut anywhere is refused", "[trainer][safetensors]") {
  const ScratchFolder folder;
  write_safetensors(folder / "f", sample());
  const std::string whole = content_of(folder / "f");
  REQUIRE(error_of(whole) == "");

  for (std::size_t length = 0; length < whole.size(); ++length) {
    INFO(length);
    REQUIRE(error_of(whole.substr(0, length)) != "");
  }
}

TEST_CASE("a file with any single changed byte is refused", "[trainer][safetensors]") {
  const ScratchFolder folder;
  write_safetensors(folder / "f", sample());
  const std::string whole = content_of(folder / "f");

  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x20, 0x80}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      INFO("byte " << at << " flipped by " << flip);
      // A change of the key itself leaves a sound file without a checksum, which only the reader
      // of a checkpoint can refuse.
      const bool key_changed = !contains(changed, "\"xxh64\":");
      REQUIRE((key_changed || error_of(changed) != ""));
    }
  }
}

TEST_CASE("a header that lies is refused with the reason", "[trainer][safetensors]") {
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const std::string data(8, 'x');
  CHECK(error_of(with_header("{\"a\":" + entry("F32", "[2]", "[0,8]") + "}", data)) == "");

  CHECK(contains(error_of(with_header("{}", "", std::size_t{1} << 60)), "header claims"));
  CHECK(contains(error_of(with_header("[]", "")), "JSON object"));
  CHECK(contains(error_of(with_header("{\"a\":", "")), "JSON object"));
  CHECK(contains(error_of(with_header("{\"a\":3}", "")), "lacks"));
  CHECK(contains(error_of(with_header("{\"a\":" + entry("F8_E4M3", "[8]", "[0,8]") + "}", data)),
                 "F8_E4M3"));
  CHECK(contains(error_of(with_header("{\"a\":" + entry("F32", "[3]", "[0,8]") + "}", data)),
                 "needs 12"));
  CHECK(contains(error_of(with_header("{\"a\":" + entry("F32", "[2]", "[0,9]") + "}", data)),
                 "of 8"));
  CHECK(contains(error_of(with_header("{\"a\":" + entry("F32", "[2]", "[8,0]") + "}", data)),
                 "claims"));
  CHECK(contains(error_of(with_header("{\"a\":" + entry("F32", "[-2]", "[0,8]") + "}", data)),
                 "whole number"));
  CHECK(contains(error_of(with_header("{\"a\":" + entry("F32", "[2.5]", "[0,8]") + "}", data)),
                 "whole number"));
  CHECK(contains(
      error_of(with_header(
          "{\"a\":" + entry("F32", "[4294967296,4294967296,4294967296]", "[0,8]") + "}", data)),
      "impossible"));
  CHECK(contains(error_of(with_header("{\"a\":" + entry("F32", "[1]", "[0,4]") +
                                          ",\"b\":" + entry("F32", "[1]", "[0,4]") + "}",
                                      data)),
                 "overlap"));
  CHECK(contains(error_of(with_header("{\"a\":" + entry("F32", "[1]", "[4,8]") + "}", data)),
                 "hole"));
  CHECK(contains(error_of(with_header("{\"a\":" + entry("F32", "[1]", "[0,4]") + "}", data)),
                 "end at 4"));
  CHECK(contains(error_of(with_header("{\"__metadata__\":{\"a\":1}}", "")), "not a string"));
  CHECK(contains(error_of(with_header("{\"__metadata__\":[]}", "")), "not an object"));
}

TEST_CASE("a file that cannot be opened is named", "[trainer][safetensors]") {
  const ScratchFolder folder;
  const auto read_error = [](const std::filesystem::path& path) {
    return message_of<SafetensorsError>([&] { read_safetensors(path); });
  };
  CHECK(contains(read_error(folder / "none"), (folder / "none").string()));
  CHECK(contains(read_error(folder.path()), "regular file"));
  CHECK_THROWS_AS(write_safetensors(folder / "no/such", sample()), SafetensorsError);
}

TEST_CASE("headers with very many or very deep values are refused soon", "[trainer][safetensors]") {
  const std::size_t size = 15 << 20;
  for (const std::string unit : {"[", "{\"a\":"}) {
    std::string deep = "{\"a\":";
    while (deep.size() < size) deep += unit;
    CHECK(contains(error_of(with_header(deep, "")), "too deep"));
  }
  // Found one after the other, the keys of such a header would take minutes.
  std::string wide = "{";
  for (int i = 0; wide.size() < size; ++i)
    wide.append("\"").append(std::to_string(i)).append("\":{},");
  CHECK(contains(error_of(with_header(wide + "\"x\":{}}", "")), "lacks"));
  std::string side = R"({"a":{"dtype":"F32","data_offsets":[0,8],"shape":[1)";
  while (side.size() < size) side += ",1";
  CHECK(contains(error_of(with_header(side + "]}}", std::string(8, 'x'))), "needs 4"));
  CHECK(contains(error_of(with_header(std::string(17 << 20, ' '), "")), "limit"));
}

TEST_CASE("random headers end with tensors or an error", "[trainer][safetensors]") {
  const std::string header =
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("y":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})";
  const std::string data(16, 'x');
  REQUIRE(error_of(with_header(header, data)) == "");
  const std::string pieces[] = {"{",
                                "}",
                                "[",
                                "]",
                                ":",
                                ",",
                                "\"",
                                "-1",
                                "0",
                                "1e9",
                                "null",
                                "true",
                                "18446744073709551615",
                                "9223372036854775808",
                                "\"F32\"",
                                "\"x\"",
                                "\\u0000",
                                "\xff"};
  std::mt19937 random(5);
  for (int round = 0; round < 20'000; ++round) {
    std::string changed = header;
    for (std::size_t i = 0; i <= random() % 3; ++i) {
      const std::size_t at = random() % changed.size();
      changed.replace(at, random() % std::min<std::size_t>(8, changed.size() - at),
                      pieces[random() % std::size(pieces)]);
    }
    std::size_t bytes = 0;
    try {
      for (const auto& [name, tensor] :
           parse_safetensors(with_header(changed, data), "f").tensors) {
        bytes += tensor.nbytes();
      }
    } catch (const SafetensorsError&) {
    }
    REQUIRE(bytes <= data.size());
  }
}
