// What the start of a worker throws: apart, because those who start one and those who ask for it do
// not know each other.
#pragma once

#include <stdexcept>
#include <string>
#include <system_error>

namespace ddprun::launcher {

// A worker could not be started: which program, and why (ENOENT, EACCES ...).
class StartError : public std::runtime_error {
 public:
  StartError(const std::string& message, int error_number)
      : std::runtime_error(message), error_number_(error_number) {}
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

inline StartError start_error(int local_rank, const std::system_error& error) {
  return {"cannot start worker " + std::to_string(local_rank) + ": " + error.what(),
          error.code().value()};
}

}  // namespace ddprun::launcher
