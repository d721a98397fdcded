// Zip archives and pickles: what torch.save writes is read, and nothing damaged harms.
#include <algorithm>
#include <random>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/formats/pickle_reader.h"
#include "trainer/formats/zip_archive.h"

using namespace ddprun::trainer;
using Kind = PickleValue::Kind;

namespace {

std::string pickle_error(const std::string& bytes) {
  return message_of<PickleError>([&] { const Pickle pickle(bytes); });
}

// {"a": (1, -2, 300, True, None), "b": [3.0, "x"]}, as pickle.dumps(..., 2) writes it.
const std::string sample(
    "\200\002}q\000(X\001\000\000\000aq\001(K\001J\376\377\377\377M,\001\210Ntq\002X\001\000"
    "\000\000bq\003]q\004(G@\010\000\000\000\000\000\000X\001\000\000\000xq\005eu.",
    62);

}  // namespace

TEST_CASE("a pickle of plain values is read", "[trainer][checkpoint]") {
  const Pickle pickle(sample);
  const PickleValue* tuple = pickle.root().find("a");
  REQUIRE(tuple != nullptr);
  REQUIRE(tuple->kind == Kind::Tuple);
  REQUIRE(tuple->items.size() == 5);
  CHECK(tuple->items[0]->number == 1);
  CHECK(tuple->items[1]->number == -2);
  CHECK(tuple->items[2]->number == 300);
  CHECK(tuple->items[3]->kind == Kind::Boolean);
  CHECK(tuple->items[4]->kind == Kind::None);
  const PickleValue* list = pickle.root().find("b");
  REQUIRE(list != nullptr);
  CHECK(list->items[1]->text == "x");
  CHECK(pickle.root().find("c") == nullptr);
}

TEST_CASE("an array of bytes in a pickle is read, which protocol 5 has", "[trainer][checkpoint]") {
  const Pickle pickle(std::string("\x80\5\x96\2\0\0\0\0\0\0\0ab.", 14));
  CHECK(pickle.root().text == "ab");
}

TEST_CASE("what a pickle calls is kept as data and never run", "[trainer][checkpoint]") {
  const Pickle pickle("cos\nsystem\n(U\4truetR.");
  CHECK(pickle.root().kind == Kind::Call);
}

TEST_CASE("pickles that no pickler writes are refused", "[trainer][checkpoint]") {
  CHECK(contains(pickle_error(""), "truncated"));
  CHECK(contains(pickle_error("."), "takes more"));
  CHECK(contains(pickle_error("t."), "not begun"));
  CHECK(contains(pickle_error("(R."), "takes more"));
  CHECK(contains(pickle_error("h\1."), "not stored"));
  CHECK(contains(pickle_error("\xff."), "0xff"));
  CHECK(contains(pickle_error("\xff."), "save it with pickle protocol 2 or higher"));
  CHECK_FALSE(contains(pickle_error("\x80\2\xff."), "protocol"));
  CHECK(contains(pickle_error("X\xff\xff\xff\xff"
                              "a."),
                 "truncated"));
  CHECK(contains(pickle_error("}(Nu."), "without a value"));
  for (std::size_t length = 0; length < sample.size(); ++length) {
    REQUIRE(pickle_error(sample.substr(0, length)) != "");
  }
}

TEST_CASE("a name in a pickle takes no more memory than it has bytes", "[trainer][checkpoint]") {
  // "2" doubles the top of the stack, "\x93" makes one name of two texts: 60 times, that is 2^60.
  std::string bomb("X\1\0\0\0a", 6);
  for (int i = 0; i < 60; ++i) bomb += "2\x93";
  CHECK(contains(pickle_error(bomb + "."), "no name"));
  const std::string text(1000, 'm');
  CHECK(contains(pickle_error(std::string("X\xe8\3\0\0", 5) + text + "2\x93."), "no name"));
  const Pickle pickle(std::string("\x8c\5torch\x8c\4load\x93.", 15));
  CHECK(pickle.root().text == "torch load");
}

TEST_CASE("random pickles and archives end with a result or an error", "[trainer][checkpoint]") {
  std::mt19937 random(7);
  const std::string codes =
      "\x80.N\x88\x89JKM\x8aGXU\x8cqrh(012)\x85\x86\x87t]le}sucRQb\x93\x81\x92";
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes;
    for (std::size_t i = 0; i < 60; ++i) {
      bytes +=
          random() % 3 == 0 ? static_cast<char>(random() % 256) : codes[random() % codes.size()];
    }
    pickle_error(bytes);
    std::string changed = sample;
    changed[random() % changed.size()] = static_cast<char>(random());
    pickle_error(changed);
    message_of<ZipError>([&] { const ZipArchive archive(bytes); });
  }
  SUCCEED("nothing crashed");
}

TEST_CASE("an archive that is none, or cut, is refused", "[trainer][checkpoint]") {
  const auto error = [](const std::string& bytes) {
    return message_of<ZipError>([&] { const ZipArchive archive(bytes); });
  };
  CHECK(contains(error(""), "directory"));
  CHECK(contains(error("PK\3\4"), "directory"));
  CHECK(contains(error(std::string(100'000, 'x')), "directory"));
  std::string empty = "PK\5\6";
  empty.resize(22, '\0');
  CHECK(error(empty) == "");
  empty[10] = 1;  // One entry, but no directory.
  CHECK(contains(error(empty), "truncated"));
}
