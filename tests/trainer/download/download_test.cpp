// Downloads from a server of the test's own: whole or not at all, going on where it stopped, and
// never over what is there.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "tests/testing/catch.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/patience.h"
#include "tests/trainer/download/range_server.h"
#include "tests/trainer/download/tar_writer.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sets/data_file.h"
#include "trainer/download/download_set.h"
#include "trainer/download/tar_members.h"

using namespace ddprun::trainer;
namespace fs = std::filesystem;

namespace {

// Not compressible, so that half of a file is half of its content.
std::string noise(std::size_t bytes, unsigned seed) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    seed = seed * 1664525 + 1013904223;
    text += static_cast<char>(seed >> 24);
  }
  return text;
}

void write_gzip(const fs::path& path, const std::string& bytes) {
  const gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) ==
          static_cast<int>(bytes.size()));
  REQUIRE(gzclose(file) == Z_OK);
}

// A published set of an archive with two files that are wanted, and one file by itself.
class Publisher {
 public:
  Publisher() {
    const std::string archive = tar_member("set/", "", '5') + tar_member("set/a.bin", a) +
                                tar_member("set/unlabeled.bin", noise(9'000, 7)) +
                                tar_member("../../b.bin", b) + tar_end();
    write_gzip(published / "set.tar.gz", archive);
    write_bytes(published / "c.gz", c);
    write_bytes(scratch / "a", a);
  }

  PublishedSet set(const std::string& address) const {
    PublishedDownload archive{
        .address = address + "/set.tar.gz",
        .md5 = md5_of(published / "set.tar.gz"),
        .archive = true,
        .files = {{.name = "a.bin",
                   .bytes = static_cast<std::int64_t>(a.size()),
                   .md5 = md5_of(scratch / "a"),
                   .alternative = ""},
                  {.name = "b.bin", .bytes = 0, .md5 = "", .alternative = ""}}};
    PublishedDownload file{
        .address = address + "/c.gz",
        .md5 = md5_of(published / "c.gz"),
        .archive = false,
        .files = {
            {.name = "c.gz", .bytes = 0, .md5 = md5_of(published / "c.gz"), .alternative = "c"}}};
    return {"The set", {std::move(archive), std::move(file)}};
  }

  // What a call says, and throws.
  std::string download(const RangeServer& server) const {
    return download(server, set(server.address()));
  }
  // `wanted` with its sums, from where the server is.
  std::string download(const RangeServer& server, const PublishedSet& wanted) const {
    std::string said;
    const std::string error = message_of<DataError>([&] {
      download_set(mirrored(wanted, server.address()), folder / "data",
                   [&](const std::string& line) { said += line + "\n"; });
    });
    return said + error;
  }

  // Nothing else may be there.
  bool complete() const {
    const auto files = std::distance(fs::directory_iterator(folder / "data"), {});
    return files == 3 && content_of(folder / "data/a.bin") == a &&
           content_of(folder / "data/b.bin") == b && content_of(folder / "data/c.gz") == c;
  }

  const std::string a = noise(100'000, 1), b = noise(777, 2), c = noise(30'000, 3);
  ScratchFolder scratch;
  fs::path published = made(scratch / "published");
  ScratchFolder folder;

 private:
  static fs::path made(const fs::path& path) {
    fs::create_directory(path);
    return path;
  }
};

}  // namespace

TEST_CASE("a set is fetched and unpacked once", "[trainer][download]") {
  const Publisher publisher;
  const RangeServer server(publisher.published);

  const std::string said = publisher.download(server);

  INFO(said);
  CHECK(publisher.complete());
  CHECK(contains(said, "The set is in "));
  CHECK(server.requests() == std::vector<std::string>{"/set.tar.gz", "/c.gz"});
  CHECK(publisher.download(server).empty());
  CHECK(server.requests().size() == 2);
  CHECK_FALSE(fs::exists(publisher.folder.path().parent_path() / "b.bin"));

  fs::remove(publisher.folder / "data/c.gz");
  write_bytes(publisher.folder / "data/c", "unpacked by somebody");
  fs::remove(publisher.folder / "data/b.bin");
  const auto before = fs::last_write_time(publisher.folder / "data/a.bin");
  publisher.download(server);
  CHECK(server.requests().back() == "/set.tar.gz");
  CHECK(content_of(publisher.folder / "data/b.bin") == publisher.b);
  CHECK(fs::last_write_time(publisher.folder / "data/a.bin") == before);
  CHECK(content_of(publisher.folder / "data/c") == "unpacked by somebody");
}

TEST_CASE("a download goes on where it stopped", "[trainer][download]") {
  const Publisher publisher;
  const std::string archive = content_of(publisher.published / "set.tar.gz");
  fs::create_directory(publisher.folder / "data");
  write_bytes(publisher.folder / "data/set.tar.gz.partial", archive.substr(0, 40'000));
  write_bytes(publisher.folder / "data/c.gz.partial", publisher.c);  // All but its name.
  const RangeServer server(publisher.published);

  const std::string said = publisher.download(server);

  INFO(said);
  CHECK(publisher.complete());
  CHECK(server.requests() ==
        std::vector<std::string>{"/set.tar.gz bytes=40000-", "/c.gz bytes=30000-"});
}

TEST_CASE("a connection that breaks is taken up again", "[trainer][download]") {
  const Publisher publisher;
  const RangeServer server(publisher.published, {"cut=50000"});

  const std::string said = publisher.download(server);

  INFO(said);
  CHECK(publisher.complete());
  const auto requests = server.requests();
  REQUIRE(requests.size() == 3);
  CHECK(requests[1] == "/set.tar.gz bytes=50000-");
}

TEST_CASE("a server that knows no ranges sends everything again", "[trainer][download]") {
  const Publisher publisher;
  fs::create_directory(publisher.folder / "data");
  write_bytes(publisher.folder / "data/set.tar.gz.partial",
              content_of(publisher.published / "set.tar.gz").substr(0, 40'000));
  const RangeServer server(publisher.published, {"plain"});

  const std::string said = publisher.download(server);

  INFO(said);
  CHECK(publisher.complete());
}

TEST_CASE("a page in the place of the file does not take away what has come",
          "[trainer][download]") {
  const std::string page = "<html>log in to the network of this hotel</html>";
  for (const std::vector<std::string>& modes :
       {std::vector<std::string>{"plain"}, std::vector<std::string>{"plain", "lengthless"}}) {
    const Publisher publisher;
    const std::string archive = content_of(publisher.published / "set.tar.gz");
    fs::create_directory(publisher.folder / "data");
    write_bytes(publisher.folder / "data/set.tar.gz.partial", archive.substr(0, 40'000));
    const PublishedSet set = publisher.set("");
    write_bytes(publisher.published / "set.tar.gz", page);
    const RangeServer server(publisher.published, modes);

    const std::string said = publisher.download(server, set);

    INFO(said);
    CHECK(contains(said, modes.size() == 1 ? "sends 48 bytes from the start, fewer than the 40000"
                                           : "does not say how many"));
    CHECK(contains(said, "0.0 MB are kept in "));
    const bool kept =
        content_of(publisher.folder / "data/set.tar.gz.partial") == archive.substr(0, 40'000);
    CHECK(kept);
  }
}

TEST_CASE("the beginning of another file is thrown away", "[trainer][download]") {
  const Publisher publisher;
  fs::create_directory(publisher.folder / "data");
  write_bytes(publisher.folder / "data/set.tar.gz.partial", std::string(40'000, 'x'));
  const RangeServer server(publisher.published);

  const std::string said = publisher.download(server);

  INFO(said);
  CHECK(contains(said, "from the start"));
  CHECK(publisher.complete());
}

TEST_CASE("what has another sum than the published file gets no name", "[trainer][download]") {
  const Publisher publisher;
  const RangeServer server(publisher.published);
  PublishedSet set = publisher.set(server.address());
  write_bytes(publisher.published / "c.gz", "<html>log in to the network of this hotel</html>");

  const std::string error = message_of<DataError>(
      [&] { download_set(set, publisher.folder / "data", [](const std::string&) {}); });

  CHECK(contains(error, "/c.gz gives has the MD5 "));
  CHECK_FALSE(fs::exists(publisher.folder / "data/c.gz"));
  CHECK_FALSE(fs::exists(publisher.folder / "data/c.gz.partial"));
  CHECK(content_of(publisher.folder / "data/a.bin") == publisher.a);
}

TEST_CASE("a file that is there is never overwritten", "[trainer][download]") {
  const Publisher publisher;
  fs::create_directory(publisher.folder / "data");
  const RangeServer server(publisher.published);
  for (const std::string& mine : {std::string("mine"), noise(100'000, 5)}) {
    write_bytes(publisher.folder / "data/a.bin", mine);
    const std::string said = publisher.download(server);
    INFO(said);
    CHECK(contains(said, mine.size() == 4 ? "has 4 bytes instead of 100000" : "has the MD5 "));
    CHECK(contains(said, "Move it away"));
    CHECK(content_of(publisher.folder / "data/a.bin") == mine);
    // Told from what another start may find mended, such as a network that is down.
    CHECK(message_of<ForeignFileError>([&] {
            download_set(publisher.set(server.address()), publisher.folder / "data",
                         [](const std::string&) {});
          }) == said);
  }
  CHECK(server.requests().empty());
}

TEST_CASE("without a network the error says what to do, and what came is kept",
          "[trainer][download]") {
  const Publisher publisher;
  const std::string nowhere = "http://127.0.0.1:" + std::to_string(ddprun::testing::free_port());
  const std::string error = message_of<DataError>([&] {
    download_set(publisher.set(nowhere), publisher.folder / "data", [](const std::string&) {});
  });
  INFO(error);
  CHECK(contains(error, "cannot download " + nowhere + "/set.tar.gz"));
  CHECK(contains(error, "Is there a network here?"));
  CHECK(fs::is_empty(publisher.folder / "data"));

  const RangeServer lost(publisher.published, {"lost=50000"});
  const std::string said = publisher.download(lost);
  INFO(said);
  CHECK(contains(said, "the same command goes on from there"));
  CHECK(fs::file_size(publisher.folder / "data/set.tar.gz.partial") == 50'000);

  const RangeServer missing(publisher.folder.path());
  CHECK(contains(publisher.download(missing), "404"));
  CHECK(fs::file_size(publisher.folder / "data/set.tar.gz.partial") == 50'000);
}

TEST_CASE("a place that cannot be written is not taken for a network", "[trainer][download]") {
  const Publisher publisher;
  const RangeServer server(publisher.published);
  std::string full;
  {
    const ddprun::testing::FileSizeLimit limit(50'000);
    full = publisher.download(server);
  }
  INFO(full);
  CHECK(contains(full, "set.tar.gz.partial: File too large; 0.1 MB are kept in "));
  CHECK(contains(full, "; --data takes a folder where this user may write"));
  CHECK_FALSE(contains(full, "network"));
  fs::remove(publisher.folder / "data/set.tar.gz.partial");
  fs::create_directory(publisher.folder / "data/set.tar.gz.partial");
  CHECK(contains(publisher.download(server), "set.tar.gz.partial: Is a directory; --data takes"));
}

// Whoever may write in the folder can guess the names.
TEST_CASE("what comes is written to no link that lies in its place", "[trainer][download]") {
  for (const std::string name : {"set.tar.gz.partial", "a.bin.partial", "c.gz.partial"}) {
    const Publisher publisher;
    const RangeServer server(publisher.published);
    fs::create_directories(publisher.folder / "data");
    write_bytes(publisher.folder / "mine", "mine");
    const fs::path link = publisher.folder / ("data/" + name);
    fs::create_symlink(publisher.folder / "mine", link);

    const std::string said = publisher.download(server);

    INFO(said);
    CHECK(contains(said, link.string()));
    CHECK(contains(said, "symbolic link"));
    const bool untouched = content_of(publisher.folder / "mine") == "mine";  // No noise is shown.
    CHECK(untouched);
    fs::remove(link);
    publisher.download(server);
    CHECK(publisher.complete());
  }
}

TEST_CASE("of two that ask at once one fetches", "[trainer][download]") {
  const Publisher publisher;
  const RangeServer server(publisher.published);
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  for (std::string& error : errors) {
    threads.emplace_back([&] {
      error = message_of<DataError>([&] {
        download_set(publisher.set(server.address()), publisher.folder / "data",
                     [](const std::string&) {});
      });
    });
  }
  for (std::thread& thread : threads) thread.join();

  CHECK(errors == std::vector<std::string>(3));
  CHECK(publisher.complete());
  CHECK(server.requests().size() == 2);
}

// One on another host, of a folder that both see: its locks are those of files that it writes to.
class Elsewhere {
 public:
  explicit Elsewhere(const fs::path& partial)
      : fd_(::open(partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    REQUIRE(::flock(fd_, LOCK_EX) == 0);
  }
  void append(const std::string& bytes) const {
    REQUIRE(::pwrite(fd_, bytes.data(), bytes.size(), ::lseek(fd_, 0, SEEK_END)) ==
            static_cast<ssize_t>(bytes.size()));
  }
  ~Elsewhere() { ::close(fd_); }
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;

 private:
  int fd_;
};

// Downloads while somebody else does, who goes on with `rest` once this one waits.
std::string download_beside(const Publisher& publisher, const RangeServer& server,
                            const fs::path& partial,
                            const std::function<void(const Elsewhere&)>& rest) {
  auto other = std::make_unique<Elsewhere>(partial);
  std::promise<void> waits;
  std::string error;
  std::thread here([&] {
    error = message_of<DataError>([&] {
      download_set(publisher.set(server.address()), publisher.folder / "data",
                   [&, told = false](const std::string& line) mutable {
                     if (contains(line, "Waiting for another process") && !told) waits.set_value();
                     told = told || contains(line, "Waiting");
                   });
    });
  });
  const auto limit = ddprun::testing::patience(std::chrono::seconds(10));
  const bool waited = waits.get_future().wait_for(limit) == std::future_status::ready;
  CHECK(waited);
  CHECK(server.requests().empty());
  if (waited) rest(*other);
  other.reset();
  here.join();
  return error;
}

TEST_CASE("what another host fetches into the same folder is waited for", "[trainer][download]") {
  const Publisher publisher;
  const std::string archive = content_of(publisher.published / "set.tar.gz");
  const fs::path data = publisher.folder / "data";
  fs::create_directory(data);
  const RangeServer server(publisher.published);

  // It dies after the half, and the other goes on from there.
  const std::string error =
      download_beside(publisher, server, data / "set.tar.gz.partial",
                      [&](const Elsewhere& other) { other.append(archive.substr(0, 50'000)); });

  CHECK(error.empty());
  CHECK(publisher.complete());
  CHECK(server.requests() == std::vector<std::string>{"/set.tar.gz bytes=50000-", "/c.gz"});
}

TEST_CASE("what another host has fetched meanwhile is not fetched again", "[trainer][download]") {
  const Publisher publisher;
  const fs::path data = publisher.folder / "data";
  fs::create_directory(data);
  write_bytes(data / "a.bin", publisher.a);
  write_bytes(data / "b.bin", publisher.b);
  const RangeServer server(publisher.published);

  const std::string error =
      download_beside(publisher, server, data / "c.gz.partial", [&](const Elsewhere& other) {
        other.append(publisher.c);
        fs::rename(data / "c.gz.partial", data / "c.gz");
      });

  CHECK(error.empty());
  CHECK(publisher.complete());
  CHECK(server.requests().empty());
}

TEST_CASE("a cut or damaged archive is an error", "[trainer][download]") {
  const std::string archive =
      tar_member("set/a.bin", noise(1'000, 1)) + tar_member("b.bin", "b") + tar_end();
  const auto error_of = [](const std::string& bytes) {
    std::size_t at = 0;
    const auto source = [&](char* to, std::size_t count) {
      const std::size_t given = std::min(count, bytes.size() - at);
      bytes.copy(to, given, at);
      at += given;
      return given;
    };
    return message_of<TarError>([&] {
      read_tar(source, {.begin = [](const std::string&, std::uint64_t) { return true; },
                        .part = [](const char*, std::size_t) {},
                        .end = [] {}});
    });
  };
  REQUIRE(error_of(archive).empty());
  for (std::size_t length = 0; length <= archive.size() - tar_end().size(); length += 100) {
    INFO(length);
    CHECK_FALSE(error_of(archive.substr(0, length)).empty());
  }
  std::string damaged = archive;
  damaged[130] = '7';  // Of the size.
  CHECK(contains(error_of(damaged), "another checksum"));
}

TEST_CASE("the published sets have what their readers want", "[trainer][download]") {
  CHECK(published_set("mnist").downloads.size() == 4);
  CHECK(published_set("cifar10").downloads[0].files.size() == 6);
  CHECK(published_set("stl10").downloads[0].files[0].bytes == 138'240'000);
  CHECK_THROWS_AS(published_set("imagenet"), std::invalid_argument);
  CHECK(mirrored(published_set("stl10"), "http://mirror/sets").downloads[0].address ==
        "http://mirror/sets/stl10_binary.tar.gz");
}
