// Reading to the end is not enough: a cut gzip stream and a changed file must not pass for data.
#include "trainer/data/sets/data_file.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <zlib.h>

#include <cctype>
#include <cerrno>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {
namespace {

constexpr std::size_t chunk_bytes = 1 << 20;
constexpr std::size_t sum_digits = 64;
constexpr const char* hex_digits = "0123456789abcdefABCDEF";

std::string digest_of(const std::filesystem::path& path, const EVP_MD* kind) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw_unread("cannot open " + path.string(), errno);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  if (EVP_DigestInit_ex(context.get(), kind, nullptr) != 1) {  // In FIPS mode there is no MD5.
    throw DataError(
        fmt::format("cannot check {}: OpenSSL here does not have the kind of sum", path.string()));
  }
  std::vector<char> chunk(chunk_bytes);
  while (file.read(chunk.data(), chunk_bytes), file.gcount() > 0) {
    EVP_DigestUpdate(context.get(), chunk.data(), static_cast<std::size_t>(file.gcount()));
  }
  // It is not to be taken for another file: good ones would be fetched again.
  if (file.bad()) throw_unread("cannot read " + path.string(), errno);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_DigestFinal_ex(context.get(), digest, &length);
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

struct ListedSum {
  std::string digits;  // In lower case.
  std::string name;
};

bool is_sum(const std::string& text) {
  return text.size() == sum_digits && text.find_first_not_of(hex_digits) == text.npos;
}

// Nothing for what is neither kind of line.
std::optional<ListedSum> listed_sum(const std::string& line) {
  constexpr std::string_view tag = "SHA256 (", equals = ") = ";
  const std::size_t name_end = line.rfind(equals);
  ListedSum listed;
  if (line.starts_with(tag) && name_end != line.npos && name_end > tag.size()) {
    listed = {line.substr(name_end + equals.size()),
              line.substr(tag.size(), name_end - tag.size())};
  } else if (line.size() >= sum_digits + 3 && line[sum_digits] == ' ') {
    // One blank, then sha256sum's mark of text or binary mode: the rest is the name, with its
    // blanks.
    listed = {line.substr(0, sum_digits), line.substr(sum_digits + 2)};
  }
  if (!is_sum(listed.digits)) return std::nullopt;
  for (char& digit : listed.digits) {
    digit = static_cast<char>(std::tolower(static_cast<unsigned char>(digit)));
  }
  return listed;
}

}  // namespace

std::vector<std::uint8_t> read_data_file(const std::filesystem::path& path, std::size_t bytes_max) {
  const std::string name = path.string();
  if (std::filesystem::is_directory(path)) throw DataError(name + " is a folder, not a file");
  // zlib reads plain files as they are, so one loop serves both.
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(name.c_str(), "rb"), &gzclose);
  if (!file) throw_unread("cannot open " + name, errno);
  std::vector<std::uint8_t> bytes;
  for (;;) {
    const std::size_t filled = bytes.size();
    bytes.resize(filled + chunk_bytes);
    const int count = gzread(file.get(), bytes.data() + filled, chunk_bytes);
    if (count < 0) {
      const int error = errno;
      int code = 0;
      const char* reason = gzerror(file.get(), &code);
      if (code == Z_ERRNO) throw_unread("cannot read " + name, error);  // Not by its content.
      throw DataError(fmt::format("cannot unpack {} past byte {} (unpacked): {}; fetch it again",
                                  name, filled, reason));
    }
    bytes.resize(filled + static_cast<std::size_t>(count));
    if (bytes.size() > bytes_max) {
      throw DataError(fmt::format("{} is longer than {} bytes unpacked: not the expected data",
                                  name, bytes_max));
    }
    if (count == 0) break;
  }
  // A gzip stream that merely stops is not an error to gzread; it is one here.
  int code = Z_OK;
  gzerror(file.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END) {
    throw DataError(
        fmt::format("{} is truncated: its gzip data ends after {} unpacked bytes; "
                    "fetch it again",
                    name, bytes.size()));
  }
  return bytes;
}

std::string md5_of(const std::filesystem::path& path) { return digest_of(path, EVP_md5()); }

int verify_checksums(const std::filesystem::path& folder) {
  std::ifstream list(folder / "SHA256SUMS");
  int checked = 0;
  std::string line;
  for (int number = 1; std::getline(list, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();  // A list that was made on Windows.
    if (line.empty() || line.starts_with('#')) continue;
    const auto listed = listed_sum(line);
    if (!listed) {
      throw DataError(fmt::format(
          "{}: line {} is not one of sha256sum, \"<64 hex digits>  <name>\": make the list anew",
          (folder / "SHA256SUMS").string(), number));
    }
    const std::filesystem::path file = folder / listed->name;
    const std::string found = digest_of(file, EVP_sha256());
    if (found != listed->digits) {
      throw DataError(fmt::format("{} has the SHA-256 {}, but {} expects {}: fetch the file again",
                                  file.string(), found, (folder / "SHA256SUMS").string(),
                                  listed->digits));
    }
    ++checked;
  }
  return checked;
}

}  // namespace ddprun::trainer
