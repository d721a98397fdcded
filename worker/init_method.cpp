// What option, url and environment say, made one; what is said twice must agree.
#include "worker/init_method.h"

#include <optional>

namespace ddprun::worker {
namespace {

// What was said twice must be the same.
std::optional<int> agreed(const char* what, std::optional<int> option, std::optional<int> in_url,
                          const std::string& url) {
  if (option && in_url && *option != *in_url) {
    throw WorkerEnvError(std::string(what) + " " + std::to_string(*option) + " is given, but " +
                         url + " says " + std::to_string(*in_url) + ": give one of them");
  }
  return option ? option : in_url;
}

void check_given_rank(std::optional<int> rank, std::optional<int> world_size) {
  if (world_size && *world_size < 1) {
    throw WorkerEnvError("a world size of " + std::to_string(*world_size) +
                         ": expected the number of workers, at least 1");
  }
  if (rank && (*rank < 0 || (world_size && *rank >= *world_size))) {
    const std::string range =
        world_size ? "0.." + std::to_string(*world_size - 1) : "0..(world size - 1)";
    throw WorkerEnvError("rank " + std::to_string(*rank) +
                         (world_size ? " in a world of " + std::to_string(*world_size) : "") +
                         ": ranks are " + range + ", another one for each worker");
  }
}

}  // namespace

std::map<std::string, std::string> init_variables(const InitMethod& method,
                                                  const MeetingPlace& place,
                                                  bool environment_has_rank,
                                                  const EnvironmentLookup& environment) {
  std::map<std::string, std::string> result;
  const auto rank = agreed("rank", method.rank, place.rank, method.url);
  const auto size = agreed("world size", method.world_size, place.world_size, method.url);
  check_given_rank(rank, size);
  if (rank) result["RANK"] = std::to_string(*rank);
  if (size) result["WORLD_SIZE"] = std::to_string(*size);
  if (method.local_rank) {
    if (*method.local_rank < 0) {
      throw WorkerEnvError("local rank " + std::to_string(*method.local_rank) +
                           ": expected 0 or more");
    }
    result["LOCAL_RANK"] = std::to_string(*method.local_rank);
  }
  if (rank && !size && !environment("WORLD_SIZE")) {
    throw WorkerEnvError("rank " + std::to_string(*rank) +
                         " is given, but not of how many: give the world size too (--world-size, "
                         "or WORLD_SIZE)");
  }
  const bool has_rank = rank || environment_has_rank;
  if (place.kind != MeetingPlace::Kind::Environment && !has_rank && size.value_or(2) > 1) {
    throw WorkerEnvError(method.url +
                         " says where to meet, but nothing says which worker this is: give a rank "
                         "and the world size (--rank and --world-size, or RANK and WORLD_SIZE)");
  }
  if (place.kind == MeetingPlace::Kind::Tcp) {
    result["MASTER_ADDR"] = place.host;
    result["MASTER_PORT"] = std::to_string(place.port);
    // The launcher's store is at the launcher's port; elsewhere rank 0 hosts one.
    if (environment("MASTER_PORT").value_or("") != result["MASTER_PORT"]) {
      result["TORCHELASTIC_USE_AGENT_STORE"] = "False";
    }
  } else if (place.kind == MeetingPlace::Kind::File) {
    result["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  }
  return result;
}

}  // namespace ddprun::worker
