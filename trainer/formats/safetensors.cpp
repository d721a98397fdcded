// Tensors to bytes and back. What a header may claim is checked in safetensors_header.cpp, which a
// fuzzer reaches without LibTorch; so nothing here looks at a number twice.
#include "trainer/formats/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "command_line/write_all.h"
#include "trainer/formats/checksum.h"
#include "trainer/formats/safetensors_format.h"
#include "trainer/formats/whole_file.h"
#include "worker/unique_fd.h"

namespace ddprun::trainer {
namespace {

using namespace safetensors_format;
using Json = nlohmann::ordered_json;  // Tensors in the order in which they are given.

// The format's names. The header's parser takes no other.
struct DtypeName {
  const char* name;
  torch::ScalarType type;
};
constexpr std::array<DtypeName, 10> dtypes{{{"F64", torch::kFloat64},
                                            {"F32", torch::kFloat32},
                                            {"F16", torch::kFloat16},
                                            {"BF16", torch::kBFloat16},
                                            {"I64", torch::kInt64},
                                            {"I32", torch::kInt32},
                                            {"I16", torch::kInt16},
                                            {"I8", torch::kInt8},
                                            {"U8", torch::kUInt8},
                                            {"BOOL", torch::kBool}}};

// The length field and the JSON text, padded.
std::string make_header(const NamedTensors& tensors, const Json& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  std::size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const torch::ScalarType type = tensor.scalar_type();
    const auto dtype = std::find_if(dtypes.begin(), dtypes.end(),
                                    [&](const DtypeName& entry) { return entry.type == type; });
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

class OutputFile : public SafetensorsSink {
 public:
  // Of a file that is renamed when it is whole: where others may write they can guess its name.
  explicit OutputFile(const std::filesystem::path& path)
      : name_(path.string()),
        fd_(::open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    if (!fd_) fail(name_, fmt::format("cannot be created: {}", std::strerror(errno)));
  }

  void write(const void* data, std::size_t bytes) override {
    const int error =
        command_line::write_all(fd_.get(), {static_cast<const char*>(data), bytes}).error;
    if (error != 0) fail(name_, fmt::format("cannot be written: {}", std::strerror(error)));
  }

  void overwrite(const std::string& bytes, std::size_t at) override {
    if (::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)) !=
        static_cast<ssize_t>(bytes.size())) {
      fail(name_, fmt::format("cannot be written: {}", std::strerror(errno)));
    }
  }

  void sync() {
    if (::fsync(fd_.get()) != 0) {
      fail(name_, fmt::format("cannot be synced: {}", std::strerror(errno)));
    }
  }

 private:
  std::string name_;
  worker::UniqueFd fd_;
};

// The header's parser takes no dtype that is not in the list: its own list must have no others.
torch::ScalarType type_of(const std::string& dtype) {
  const auto found = std::find_if(dtypes.begin(), dtypes.end(),
                                  [&](const auto& known) { return known.name == dtype; });
  assert(found != dtypes.end());
  return found->type;
}

}  // namespace

// The checksum stands in front of what it is taken of, so it is filled in at the end: that takes
// one pass over the tensors, and memory for one that does not lie in C order.
WrittenFile write_safetensors(SafetensorsSink& sink, const Safetensors& contents) {
  Json metadata(contents.metadata);
  metadata[checksum_key] = checksum_zeros;
  const std::string header = make_header(contents.tensors, metadata);
  const std::string field = fmt::format("\"{}\":\"{}\"", checksum_key, checksum_zeros);
  const std::size_t digits = header.find(field) + field.size() - 1 - std::strlen(checksum_zeros);

  Checksum hash;
  WrittenFile written;
  const auto write = [&](const void* data, std::size_t bytes) {
    hash.add(data, bytes);
    sink.write(data, bytes);
    written.bytes += bytes;
  };
  write(header.data(), header.size());
  for (const auto& [name, tensor] : contents.tensors) {
    const torch::Tensor packed = tensor.detach().to(torch::kCPU).contiguous();
    write(packed.data_ptr(), packed.nbytes());
  }
  written.checksum = hash.hex();
  sink.overwrite(written.checksum, digits);
  return written;
}

WrittenFile write_safetensors(const std::filesystem::path& path, const Safetensors& contents) {
  OutputFile file(path);
  const WrittenFile written = write_safetensors(file, contents);
  // Whoever renames the file next relies on its content being on the disk (checkpoint_folder.cpp).
  file.sync();
  return written;
}

Safetensors parse_safetensors(std::string_view file, const std::string& name) {
  SafetensorsHeader header = parse_safetensors_header(file, name);
  Safetensors contents;
  contents.metadata = std::move(header.metadata);
  for (const SafetensorsEntry& entry : header.tensors) {
    torch::Tensor tensor = torch::empty(entry.shape, type_of(entry.dtype));
    if (entry.end > entry.begin) {
      std::memcpy(tensor.data_ptr(), header.data.data() + entry.begin, entry.end - entry.begin);
    }
    contents.tensors.emplace_back(entry.name, std::move(tensor));
  }
  return contents;
}

Safetensors read_safetensors(const std::filesystem::path& path) {
  try {
    return parse_safetensors(read_whole_file(path), path.string());
  } catch (const FileAccessError& error) {
    throw SafetensorsAccessError(error.what());
  } catch (const FileError& error) {
    throw SafetensorsError(error.what());
  }
}

}  // namespace ddprun::trainer
