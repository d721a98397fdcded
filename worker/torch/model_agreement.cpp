// One 8-byte hash per rank when all agree; rank 0's text to everybody when not.
#include "worker/torch/model_agreement.h"

#include <algorithm>
#include <sstream>

#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// FNV-1a, 64 bits.
std::int64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char byte : text) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211ull;
  }
  return static_cast<std::int64_t>(hash);
}

}  // namespace

std::optional<std::string> first_difference(const std::vector<std::string>& own,
                                            const std::vector<std::string>& rank0) {
  const std::size_t both = std::min(own.size(), rank0.size());
  std::size_t i = 0;
  while (i < both && own[i] == rank0[i]) ++i;
  if (i == own.size() && i == rank0.size()) return std::nullopt;
  // One line more moves all that follow: the line in its place may be of something else altogether.
  const auto has = [i](const std::vector<std::string>& lines, const std::string& line) {
    return std::find(lines.begin() + static_cast<std::ptrdiff_t>(i), lines.end(), line) !=
           lines.end();
  };
  const bool more = i == rank0.size() || (i < own.size() && !has(rank0, own[i]));
  const bool less = i == own.size() || (i < rank0.size() && !has(own, rank0[i]));
  if (more && !less) return "it has " + own[i] + ", which rank 0 has not";
  if (less && !more) return "it lacks " + rank0[i] + ", which rank 0 has";
  return "it has " + own[i] + " where rank 0 has " + rank0[i];
}

void check_model_agreement(Communicator& communicator, const std::vector<std::string>& lines,
                           c10::Device device) {
  const std::string text = joined(lines);
  const at::Tensor hashes = result_on_host(
      communicator, all_gather(communicator, at::tensor({hash_of(text)}, at::kLong).to(device)));
  const auto* const hash = hashes.data_ptr<std::int64_t>();
  const auto* const end = hash + hashes.numel();
  const auto* const other = std::find_if(hash, end, [&](std::int64_t h) { return h != hash[0]; });
  if (other == end) return;

  // All ranks have seen the same hashes, so all of them take part in this.
  const std::vector<std::string> rank0 = split(broadcast_text(communicator, text, device, 0));
  const std::string start = "the ranks hold different models: ";
  if (const auto difference = first_difference(lines, rank0)) {
    throw ModelMismatch(start + "on rank " + std::to_string(communicator.rank()) + ", " +
                        *difference);
  }
  throw ModelMismatch(start + "rank " + std::to_string(other - hash) +
                      "'s differs from rank 0's; its own message names the difference");
}

}  // namespace ddprun::worker
