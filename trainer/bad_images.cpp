// All ranks learn the numbers of all images, of which there may be many; reasons travel only for as
// many as are told.
#include "trainer/bad_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <string_view>

#include "trainer/consistency/gather_texts.h"
#include "worker/wording.h"

namespace ddprun::trainer {
namespace {

constexpr std::size_t names_max = 10;

struct BadImagesOfAll {
  std::size_t count = 0;
  BadImages first;  // The first of the set, at most names_max.
};

std::string bytes_of(const std::vector<std::int64_t>& numbers) {
  std::string bytes(numbers.size() * sizeof numbers[0], '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::vector<std::int64_t> numbers_in(const std::string& bytes) {
  std::vector<std::int64_t> numbers(bytes.size() / sizeof(std::int64_t));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

BadImagesOfAll gather(TrainingJob& job, const BadImages& own) {
  std::vector<std::int64_t> own_numbers;
  std::string own_reasons;
  for (const auto& [number, reason] : own) {
    own_numbers.push_back(number);
    // No reason holds a NUL: it was an exception's what().
    if (own_numbers.size() <= names_max) own_reasons.append(reason).push_back('\0');
  }
  const auto numbers = gather_texts(job.communicator(), job.place.device, bytes_of(own_numbers));
  const auto reasons = gather_texts(job.communicator(), job.place.device, own_reasons);
  BadImagesOfAll all;
  std::set<std::int64_t> distinct;
  for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
    std::string_view left = reasons[rank];
    for (const std::int64_t number : numbers_in(numbers[rank])) {
      distinct.insert(number);
      if (left.empty()) continue;
      const std::size_t end = left.find('\0');
      all.first.emplace(number, left.substr(0, end));
      left.remove_prefix(end + 1);
    }
  }
  all.count = distinct.size();
  while (all.first.size() > names_max) all.first.erase(std::prev(all.first.end()));
  return all;
}

}  // namespace

std::size_t note_bad_images(BadImages& images, const std::vector<SkippedImage>& skipped,
                            std::size_t begin) {
  for (; begin < skipped.size(); ++begin) {
    images.emplace(skipped[begin].index, skipped[begin].reason);
  }
  return begin;
}

std::int64_t report_bad_images(TrainingJob& job, const BadImages& own, const std::string& pass,
                               bool tell) {
  if (!job.options.skip_bad_images) return 0;
  const BadImagesOfAll all = gather(job, own);
  const auto count = static_cast<std::int64_t>(all.count);
  if (!tell) return count;
  if (count > 0) {
    std::string text = fmt::format(
        "{} could not be read and {} {} in epoch {}:", worker::counted(count, "image"),
        count == 1 ? "was" : "were", pass == "training" ? "replaced" : "left out of the validation",
        epoch_at_hand(job.state));
    for (const auto& [number, reason] : all.first) text += "\n  " + reason;
    const std::size_t more = all.count - all.first.size();
    if (more > 0) text += fmt::format("\n  and {} more", more);
    job.reporter->warning(text);
  }
  job.reporter->event("bad_images",
                      {{"epoch", job.state.epoch}, {"pass", pass}, {"images", count}});
  return count;
}

}  // namespace ddprun::trainer
