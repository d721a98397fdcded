// The checksum of a file of ours: XXH64, in hexadecimal.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace ddprun::trainer {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(const void* data, std::size_t bytes);
  std::string hex() const;  // Of all that was added.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddprun::trainer
