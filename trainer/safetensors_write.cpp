// See safetensors.h: the writer.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "trainer/safetensors_format.h"

namespace ddprun::trainer {
namespace {

using namespace safetensors_format;

// The length field and the JSON text, padded.
std::string make_header(const NamedTensors& tensors, const Json& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  std::size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto dtype = std::find_if(dtypes.begin(), dtypes.end(), [&](const DtypeName& entry) {
      return entry.type == tensor.scalar_type();
    });
    if (dtype == dtypes.end()) fail(name, "a tensor type that safetensors files cannot hold");
    header[name] = {{"dtype", dtype->name},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, offset + tensor.nbytes()}}};
    offset += tensor.nbytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + alignment - 1) / alignment * alignment, ' ');
  std::string bytes;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    bytes += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return bytes + text;
}

class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path)
      : name_(path.string()),
        fd_(::open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (fd_ < 0) fail(name_, fmt::format("cannot be created: {}", std::strerror(errno)));
  }
  ~OutputFile() { ::close(fd_); }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, std::size_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t count = ::write(fd_, at, bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail(name_, fmt::format("cannot be written: {}", std::strerror(errno)));
      at += count;
      bytes -= static_cast<std::size_t>(count);
    }
  }

  void sync() {
    if (::fsync(fd_) != 0) fail(name_, fmt::format("cannot be synced: {}", std::strerror(errno)));
  }

 private:
  std::string name_;
  int fd_;
};

}  // namespace

void write_safetensors(const std::filesystem::path& path, const Safetensors& contents) {
  NamedTensors packed;
  for (const auto& [name, tensor] : contents.tensors) {
    packed.emplace_back(name, tensor.detach().to(torch::kCPU).contiguous());
  }
  Json metadata(contents.metadata);
  metadata[checksum_key] = checksum_zeros;
  const std::string blank_header = make_header(packed, metadata);
  Hash hash;
  hash.add(blank_header.data(), blank_header.size());
  for (const auto& [name, tensor] : packed) hash.add(tensor.data_ptr(), tensor.nbytes());
  metadata[checksum_key] = hash.hex();
  const std::string header = make_header(packed, metadata);

  OutputFile file(path);
  file.write(header.data(), header.size());
  for (const auto& [name, tensor] : packed) file.write(tensor.data_ptr(), tensor.nbytes());
  file.sync();
}

}  // namespace ddprun::trainer
