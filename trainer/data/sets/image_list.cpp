// Where files are opened, one at a time and late: a set may list millions that never fit in memory.
#include "trainer/data/sets/image_list.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <fmt/format.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "trainer/data/images/image_decoder.h"
#include "worker/unique_fd.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t image_bytes_max = std::int64_t{1} << 30;

[[noreturn]] void throw_failed(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

// Whether other files may be read all the same. All else, such as a server that does not answer or
// no memory, would make good images bad, and a run that leaves them out would train on few.
bool is_of_one_file(const std::error_code& error) {
  return error.value() == EIO || is_of_the_name(error.value());
}

// The file's bytes, in memory that is used again. Throws ImageError without the name, and
// std::system_error where a call failed.
std::span<const std::uint8_t> read_file(const std::filesystem::path& path,
                                        std::vector<std::uint8_t>& buffer) {
  // Not blocking: a pipe of that name would wait for a writer.
  const worker::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw_failed("cannot open it");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_failed("cannot examine it");
  if (!S_ISREG(status.st_mode)) throw ImageError("it is not a file");
  if (status.st_size > image_bytes_max) {
    throw ImageError(
        fmt::format("it has {} bytes; at most {} are read", status.st_size, image_bytes_max));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (buffer.size() < size) buffer.resize(size);
  std::size_t filled = 0;
  while (filled < size) {
    const ssize_t count = ::read(file.get(), buffer.data() + filled, size - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_failed("cannot read it");
    if (count == 0) break;  // It has become shorter; its decoder will say so.
    filled += static_cast<std::size_t>(count);
  }
  return {buffer.data(), filled};
}

class ImageListReader : public ImageReader {
 public:
  explicit ImageListReader(const ImageListDataset& dataset) : dataset_(dataset) {}

  ImageSize open(std::int64_t index) override {
    index_ = index;
    return named([&] {
      file_ = read_file(dataset_.path(index), buffer_);
      return decoder_.open(file_);
    });
  }
  DecodedImage decode(const ImageRegion& region) override {
    return named([&] { return decoder_.decode(region); });
  }
  std::span<const std::uint8_t> plain_jpeg() const override {
    return decoder_.is_plain_jpeg() ? file_ : std::span<const std::uint8_t>();
  }

 private:
  template <typename Call>
  auto named(Call&& call) -> decltype(call()) {
    try {
      return call();
    } catch (const ImageError& error) {
      throw ImageError(unread(error.what()));
    } catch (const std::system_error& error) {
      if (is_of_one_file(error.code())) throw ImageError(unread(error.what()));
      throw DataError(unread(error.what()) +
                      ": the file system or this process failed, not the image");
    }
  }
  std::string unread(const char* why) const {
    return fmt::format("cannot read image {}, {}: {}", index_, dataset_.name(index_), why);
  }

  const ImageListDataset& dataset_;
  std::int64_t index_ = 0;
  std::vector<std::uint8_t> buffer_;
  std::span<const std::uint8_t> file_;  // What of it the current image has.
  ImageDecoder decoder_;
};

}  // namespace

bool has_image_ending(std::string_view name) {
  for (const std::string_view ending : {".jpg", ".jpeg", ".png"}) {
    if (name.size() >= ending.size() && ::strncasecmp(name.data() + name.size() - ending.size(),
                                                      ending.data(), ending.size()) == 0) {
      return true;
    }
  }
  return false;
}

ImageListDataset::ImageListDataset(ImageList list) : list_(std::move(list)) {}

Normalization ImageListDataset::normalization() const {
  return {{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}};
}

std::uint64_t ImageListDataset::list_checksum() const {
  std::string names;
  for (const std::string& name : list_.class_names) names += name + '\0';
  std::uint64_t sum = XXH64(list_.labels.data(), list_.labels.size() * sizeof list_.labels[0], 0);
  sum = XXH64(names.data(), names.size(), sum);
  return XXH64(list_.paths.text().data(), list_.paths.text().size(), sum);
}

std::filesystem::path ImageListDataset::path(std::int64_t index) const {
  return list_.folder / list_.paths[static_cast<std::size_t>(index)];
}

std::string ImageListDataset::name(std::int64_t index) const {
  std::string text = path(index).string();
  if (!list_.lines.empty()) {
    text +=
        fmt::format(" (line {} of {})", list_.lines[static_cast<std::size_t>(index)], list_.source);
  }
  return text;
}

std::unique_ptr<ImageReader> ImageListDataset::make_reader() const {
  return std::make_unique<ImageListReader>(*this);
}

}  // namespace ddprun::trainer
