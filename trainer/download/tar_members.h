// The members of a tar archive, one after the other, as they come.
//
//   512 bytes   name, mode, ..., size (octal digits), checksum, type, ..., prefix
//   content     padded with zeros to a multiple of 512;  at the end a block of zeros
//
// The format of POSIX.1-1988 (ustar) and what GNU tar wrote before; members of other types, long
// names among them, are passed over. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace ddprun::trainer {

// An archive that is damaged or cut.
class TarError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Fills up to `count` bytes; fewer only at the end.
using TarSource = std::function<std::size_t(char* to, std::size_t count)>;

struct TarVisitor {
  // A file begins: its name without folders, and its size. Whether it is wanted.
  std::function<bool(const std::string& name, std::uint64_t bytes)> begin;
  // Parts of a wanted file, in order.
  std::function<void(const char* data, std::size_t count)> part;
  // A wanted file is whole.
  std::function<void()> end;
};

// Throws TarError, and what the source and the visitor throw.
void read_tar(const TarSource& source, const TarVisitor& visitor);

}  // namespace ddprun::trainer
