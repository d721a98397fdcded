// The parser of the c10d protocol: every message of every family, cut anywhere; limits; junk.
#include "rendezvous/wire/wire.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using std::string;

namespace {

string u64(std::uint64_t number) {
  string out;
  put_number(out, number);
  return out;
}
string text(std::string_view bytes) {
  string out;
  put_string(out, bytes);
  return out;
}
string op(int code) { return string(1, static_cast<char>(code)); }
const string validate{"\x00\xCE\xF7\x85\x3C", 5};

string describe(const StoreRequest& request) {
  string out(store_op_name(request.op));
  out.append(" ").append(request.key).append("|").append(request.value).append("|");
  out.append(request.desired).append("|").append(std::to_string(request.number)).append(" [");
  for (const auto item : request.items) out.append(item).append(",");
  return out + "]";
}

// Feeds pieces that lie in memory of their own, as short-lived as a socket's buffer.
std::vector<string> parse(const std::vector<string>& pieces, StoreParser& parser) {
  std::vector<string> requests;
  for (const string& piece : pieces) {
    std::vector<char> memory(piece.begin(), piece.end());
    std::string_view input(memory.data(), memory.size());
    for (ParseStatus status; (status = parser.next(input)) != ParseStatus::NeedMore;) {
      if (status == ParseStatus::Bad) {
        requests.push_back("bad: " + parser.bad_reason());
        return requests;
      }
      if (status == ParseStatus::Ambiguous) {
        requests.emplace_back("?");
        break;
      }
      requests.push_back(describe(parser.request()));
    }
  }
  return requests;
}

std::vector<string> parse(const std::vector<string>& pieces, WireLimits limits = {}) {
  StoreParser parser(limits);
  return parse(pieces, parser);
}

// Whole, cut in two at every byte, and one byte at a time.
void check_cut_anywhere(const string& bytes, const std::vector<string>& expected) {
  CHECK(parse({bytes}) == expected);
  for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
    INFO("cut after byte " << cut);
    CHECK(parse({bytes.substr(0, cut), bytes.substr(cut)}) == expected);
  }
  std::vector<string> single;
  for (const char c : bytes) single.emplace_back(1, c);
  CHECK(parse(single) == expected);
}

string bad_of(const string& bytes, WireLimits limits = {}) {
  const auto requests = parse({bytes}, limits);
  return requests.empty() ? "not refused" : requests.back();
}

}  // namespace

TEST_CASE("every message of torch 2.2 and later is understood, cut at any byte", "[wire]") {
  const string bytes = validate + op(13) + string("\x45\x23\x01\x00", 4) + op(1) + text("/a") +
                       text("hi") + op(2) + text("/a") + text("hi") + text("yo") + op(3) +
                       text("/a") + op(4) + text("init/") + u64(1) + op(5) + u64(2) + text("/a") +
                       text("/b") + op(6) + u64(1) + text("/a") + op(7) + op(8) + text("/a") +
                       op(9) + text("/a") + text("x") + op(10) + u64(2) + text("/a") + text("") +
                       op(11) + u64(2) + text("/a") + text("1") + text("/b") + text("") + op(12) +
                       op(14) + text("/q") + text("v") + op(15) + text("/q") + op(16) + text("/q") +
                       op(17) + op(18) + text("/bar") + u64(2) + op(6) + u64(0);

  check_cut_anywhere(
      bytes, {"PING |||74565 []", "SET /a|hi||0 []", "COMPARE_SET /a|hi|yo|0 []", "GET /a|||0 []",
              "ADD init/|||1 []", "CHECK |||0 [/a,/b,]", "WAIT |||0 [/a,]", "GETNUMKEYS |||0 []",
              "DELETE_KEY /a|||0 []", "APPEND /a|x||0 []", "MULTI_GET |||0 [/a,,]",
              "MULTI_SET |||0 [/a,1,/b,,]", "CANCEL_WAIT |||0 []", "QUEUE_PUSH /q|v||0 []",
              "QUEUE_POP /q|||0 []", "QUEUE_LEN /q|||0 []", "LIST_KEYS |||0 []",
              "BARRIER /bar|||2 []", "WAIT |||0 []"});
}

TEST_CASE("every message of torch 2.1 is understood, cut at any byte", "[wire]") {
  const string bytes = op(3) + text("init/") + u64(1) + op(0) + text("/a") + text("hi") + op(1) +
                       text("/a") + text("") + text("yo") + op(2) + text("/a") + op(4) + u64(1) +
                       text("/a") + op(5) + u64(1) + text("/a") + op(6) + op(7) + text("/a") +
                       op(9) + u64(1) + text("/a") + op(8) + text("/a") + text("x") + op(10) +
                       u64(1) + text("/a") + text("1") + op(11);

  const std::vector<string> expected{
      "ADD init/|||1 []",   "SET /a|hi||0 []",        "COMPARE_SET /a||yo|0 []",
      "GET /a|||0 []",      "CHECK |||0 [/a,]",       "WAIT |||0 [/a,]",
      "GETNUMKEYS |||0 []", "DELETE_KEY /a|||0 []",   "MULTI_GET |||0 [/a,]",
      "APPEND /a|x||0 []",  "MULTI_SET |||0 [/a,1,]", "CANCEL_WAIT |||0 []"};
  check_cut_anywhere(bytes, expected);
}

TEST_CASE("every message of torch 1.13 is understood, cut at any byte", "[wire]") {
  check_cut_anywhere(op(0) + text("/first") + text("1") + op(3) + text("/a") + u64(~0ull) + op(2) +
                         text("/a") + op(4) + u64(1) + text("/a") + op(5) + u64(1) + text("/a") +
                         op(6) + op(7) + text("/a"),
                     {"SET /first|1||0 []", "ADD /a|||-1 []", "GET /a|||0 []", "CHECK |||0 [/a,]",
                      "WAIT |||0 [/a,]", "GETNUMKEYS |||0 []", "DELETE_KEY /a|||0 []"});
}

TEST_CASE("opcode 8 without VALIDATE is an APPEND if more bytes come, else a DELETE_KEY",
          "[wire]") {
  const WireLimits limits;
  const string command = op(8) + text("/a");
  SECTION("bytes behind the key") {
    StoreParser parser(limits);
    CHECK(parse({command + text("x")}, parser) == std::vector<string>{"APPEND /a|x||0 []"});
    CHECK(parser.family() == StoreFamily::B);
  }
  SECTION("bytes that come while the shell's timer runs") {
    StoreParser parser(limits);
    CHECK(parse({command, text("x")}, parser) == std::vector<string>{"?", "APPEND /a|x||0 []"});
    CHECK(parser.family() == StoreFamily::B);
  }
  SECTION("silence, and from then on 8 is a DELETE_KEY at once") {
    StoreParser parser(limits);
    CHECK(parse({command}, parser) == std::vector<string>{"?"});
    parser.resolve_as_delete();
    CHECK(describe(parser.request()) == "DELETE_KEY /a|||0 []");
    CHECK(parser.family() == StoreFamily::A);
    CHECK(parse({command}, parser) == std::vector<string>{"DELETE_KEY /a|||0 []"});
    CHECK(parse({op(9)}, parser).back().rfind("bad: unknown opcode 9", 0) == 0);
  }
}

TEST_CASE("what is no store client is refused with the reason", "[wire]") {
  CHECK(bad_of("\x16\x03\x01") == "bad: first byte 0x16 is no c10d store client");
  CHECK(bad_of("GET / HTTP/1.1\r\n") == "bad: first byte 0x47 is no c10d store client");
  CHECK(bad_of(string("\x00\xCE\xF7\x85\x3D", 5)) == "bad: wrong VALIDATE magic 0x3d85f7ce");
  CHECK(bad_of(validate + validate) == "bad: a second VALIDATE");
  CHECK(bad_of(validate + op(19)) == "bad: unknown opcode 19");
  CHECK(bad_of(op(6) + op(12)) == "bad: unknown opcode 12 from a client without VALIDATE");
}

TEST_CASE("a refused connection stays refused", "[wire]") {
  const WireLimits limits;
  StoreParser parser(limits);
  parse({"X"}, parser);

  CHECK(parse({validate + op(7)}, parser).back().rfind("bad: ", 0) == 0);
}

TEST_CASE("each limit is accepted at its value and refused above, before the bytes come",
          "[wire]") {
  WireLimits limits;
  limits.key_bytes_max = 4;
  limits.value_bytes_max = 6;
  limits.keys_per_request_max = 2;
  limits.request_bytes_max = 12;
  CHECK(bad_of(validate + op(1) + text("1234") + text("123456"), limits) ==
        "SET 1234|123456||0 []");

  CHECK(bad_of(validate + op(1) + u64(5), limits) ==
        "bad: SET: a key of 5, over key_bytes_max = 4");
  CHECK(bad_of(validate + op(1) + text("1") + u64(7), limits) ==
        "bad: SET: a value of 7, over value_bytes_max = 6");
  CHECK(bad_of(validate + op(6) + u64(3), limits) ==
        "bad: WAIT: a list of 3, over keys_per_request_max = 2");
  CHECK(bad_of(validate + op(11) + u64(3), limits) ==
        "bad: MULTI_SET: a list of 3, over keys_per_request_max = 2");
  CHECK(bad_of(validate + op(11) + u64(2) + text("1") + text("123456") + text("2") + u64(6),
               limits) == "bad: MULTI_SET: a request of 14, over request_bytes_max = 12");
  CHECK(bad_of(validate + op(3) + u64(~0ull), limits) ==
        "bad: GET: a key of 18446744073709551615, over key_bytes_max = 4");
}

TEST_CASE("a length that is announced takes no memory before its bytes come", "[wire]") {
  const WireLimits limits;
  StoreParser parser(limits);

  parse({validate + op(1) + text("/a") + u64(limits.value_bytes_max) + "x"}, parser);
  CHECK(parser.memory_bytes() < 4096);

  StoreParser list(limits);
  parse({validate + op(6) + u64(limits.keys_per_request_max)}, list);
  CHECK(list.memory_bytes() < 4096);
}

TEST_CASE("a large value that comes in pieces is handed over as a block of its own", "[wire]") {
  const WireLimits limits;
  StoreParser parser(limits);
  const string value(1 << 20, 'v');
  const string bytes = validate + op(1) + text("/a") + text(value);
  StoreBlock owned;
  const bool in_place = GENERATE(false, true);
  for (std::size_t at = 0; at < bytes.size();) {
    string piece = bytes.substr(at, 10'000);
    at += piece.size();
    if (const auto room = parser.large_room(); in_place && !room.empty()) {
      const std::size_t size = std::min(room.size(), piece.size());
      std::copy_n(piece.begin(), size, room.begin());
      parser.received(size);
      piece.erase(0, size);
    }
    std::string_view input(piece);
    if (parser.next(input) != ParseStatus::Request) continue;
    REQUIRE(parser.request().large.size() == 1);
    CHECK(parser.request().large[0].field == 1);
    owned = std::move(parser.request().large[0].block);
  }

  CHECK(owned.view() == value);
  CHECK(owned.capacity() == value.size());  // Nothing left over for the store to carry.
  CHECK(parser.large_room().empty());
  std::string_view rest(bytes.data() + 5, bytes.size() - 5);
  CHECK(parser.next(rest) == ParseStatus::Request);
  CHECK(parser.request().value == value);
  CHECK(parser.next(rest) == ParseStatus::NeedMore);
  CHECK(parser.memory_bytes() < 4096);  // Given back.
}

TEST_CASE("each large value of a list that comes in pieces has a block of its own", "[wire]") {
  const WireLimits limits;
  StoreParser parser(limits);
  const std::vector<string> values{string(100'000, 'a'), "small", string(300'000, 'b'), string()};
  string bytes = validate + op(11) + u64(values.size());
  for (const string& value : values) bytes += text("key") + text(value);
  std::vector<string> got;
  std::vector<std::size_t> large;
  for (std::size_t at = 0; at < bytes.size(); at += 30'000) {
    const string piece = bytes.substr(at, 30'000);
    std::string_view input(piece);
    if (parser.next(input) != ParseStatus::Request) continue;
    for (const std::string_view item : parser.request().items) got.emplace_back(item);
    for (const LargeField& field : parser.request().large) large.push_back(field.field);
  }
  REQUIRE(got.size() == 8);
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(got[2 * i + 1] == values[i]);
  CHECK(large == std::vector<std::size_t>{1, 5});
}

TEST_CASE("a long list in many pieces is parsed once", "[wire]") {
  string bytes = validate + op(11) + u64(20'000);
  for (int i = 0; i < 20'000; ++i) bytes += text("key" + std::to_string(i)) + text("value");
  const WireLimits limits;
  StoreParser parser(limits);
  std::vector<string> pieces;
  for (std::size_t at = 0; at < bytes.size(); at += 7) pieces.push_back(bytes.substr(at, 7));

  const auto requests = parse(pieces, parser);

  REQUIRE(requests.size() == 1);
  CHECK(requests[0].substr(0, 40) == "MULTI_SET |||0 [key0,value,key1,value,ke");
  CHECK(requests[0].substr(requests[0].size() - 16) == "key19999,value,]");
}
