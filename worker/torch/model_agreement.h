// Do all ranks hold the same model? Compared as lines of text, one per parameter, buffer or option,
// so that the answer names what differs.
#pragma once

#include <c10/core/Device.h>

#include <locale>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "worker/communicator.h"

namespace ddprun::worker {

// The message names the first line that differs, on the rank where it differs.
class ModelMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The first difference in words; nothing when the two are equal. Core.
std::optional<std::string> first_difference(const std::vector<std::string>& own,
                                            const std::vector<std::string>& rank0);

// A line of them. c10::str would group digits as the program's global locale has it, which another
// host may not have.
template <typename... Parts>
std::string agreement_line(const Parts&... parts) {
  std::ostringstream line;
  line.imbue(std::locale::classic());
  (line << ... << parts);
  return line.str();
}

// Collective. Throws ModelMismatch on every rank when the lines of any rank differ from rank 0's.
// `device` is where the communicator's memory lies.
void check_model_agreement(Communicator& communicator, const std::vector<std::string>& lines,
                           c10::Device device);

}  // namespace ddprun::worker
