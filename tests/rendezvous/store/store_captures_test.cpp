// What real torch clients sent and got (captures/*.txt, recorded by store_capture.py), replayed:
// cut after every byte, our parser and store must answer the same bytes.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "rendezvous/store/store.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using std::string;

namespace {

// One line of a capture, joined with those that go on with it.
struct Block {
  string call;  // Of the client's Python, for messages.
  bool sent = false;
  string bytes;
};

// "  -> 01 02" and "  <- 03" hold bytes; a line without indentation names the call; others explain.
std::vector<Block> read_capture(const std::filesystem::path& path) {
  std::vector<Block> blocks;
  std::ifstream in(path);
  string call;
  for (string line; std::getline(in, line);) {
    const string start = line.substr(0, 4);
    if (start != "  ->" && start != "  <-") {
      if (!line.empty() && line[0] != ' ' && line[0] != '#') call = line;
      continue;
    }
    const bool sent = start == "  ->";
    if (blocks.empty() || blocks.back().sent != sent || blocks.back().call != call) {
      blocks.push_back({call, sent, ""});
    }
    line.erase(0, 4);
    line.erase(std::remove(line.begin(), line.end(), ' '), line.end());
    for (std::size_t i = 0; i + 1 < line.size(); i += 2) {
      blocks.back().bytes += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
    }
  }
  return blocks;
}

// One connection to a store of its own, without sockets.
class Connection {
 public:
  void feed(const string& piece) {
    const std::vector<char> memory(piece.begin(), piece.end());  // Ends with the call.
    std::string_view input(memory.data(), memory.size());
    if (store_.waiting(0)) parser_.note_abandoned_wait(input);
    while (parser_.next(input) == ParseStatus::Request) handle();
  }
  // The client waits for an answer.
  string answer() {
    if (parser_.ambiguous()) {
      parser_.resolve_as_delete();
      handle();
    }
    string text = reply_.text();
    reply_.clear();
    return text;
  }
  const string& refused() const { return refused_.empty() ? parser_.bad_reason() : refused_; }

 private:
  void handle() {
    const string reason = store_.handle(0, parser_.request(), reply_, woken_);
    if (!reason.empty()) refused_ = reason;
  }

  const WireLimits limits_;
  MemoryBudget budget_{1u << 20};
  StoreParser parser_{limits_};
  Store store_{{}, budget_, 7};
  ReplyBuffer reply_;
  std::vector<ConnectionId> woken_;
  string refused_;
};

// `cut(at)`: whether a piece ends before byte `at` of all that the client sends.
template <class Cut>
void replay(const std::vector<Block>& blocks, Cut cut) {
  Connection connection;
  std::size_t at = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    INFO(blocks[i].call);
    if (!blocks[i].sent) {
      REQUIRE(connection.answer() == blocks[i].bytes);
      continue;
    }
    string piece;
    for (const char byte : blocks[i].bytes) {
      if (cut(at++) && !piece.empty()) {
        connection.feed(piece);
        piece.clear();
      }
      piece += byte;
    }
    connection.feed(piece);
    INFO(connection.refused());
    REQUIRE(connection.refused().empty());
    const bool answered = i + 1 < blocks.size() && !blocks[i + 1].sent;
    if (!answered) REQUIRE(connection.answer().empty());
  }
}

}  // namespace

TEST_CASE("what real clients of each torch said is answered the same, cut at any byte", "[store]") {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(DDPRUN_STORE_CAPTURES)) {
    paths.push_back(entry.path());
  }
  REQUIRE(paths.size() >= 5);
  for (const auto& path : paths) {
    INFO(path);
    const std::vector<Block> blocks = read_capture(path);
    std::size_t size = 0;
    for (const Block& block : blocks) size += block.sent ? block.bytes.size() : 0;
    REQUIRE(size > 200);
    replay(blocks, [](std::size_t) { return false; });
    replay(blocks, [](std::size_t) { return true; });
    for (std::size_t cut = 1; cut < size; ++cut) {
      INFO("cut before byte " << cut);
      replay(blocks, [cut](std::size_t at) { return at == cut; });
    }
  }
}

TEST_CASE("the document shows what was recorded", "[store]") {
  const auto whole = [](const std::filesystem::path& path) {
    std::ifstream in(path);
    return string(std::istreambuf_iterator<char>(in), {});
  };
  const string document = whole(DDPRUN_STORE_PROTOCOL);
  for (const char* version : {"1.13.1", "2.1.2", "2.15.0"}) {
    INFO("torch " << version);
    const auto path = std::filesystem::path(DDPRUN_STORE_CAPTURES) /
                      string("torch-").append(version).append(".txt");
    const string capture = whole(path);
    REQUIRE(!capture.empty());
    CHECK(document.find("```\n" + capture + "```\n") != string::npos);
  }
}
