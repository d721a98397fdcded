// Progress as Kubeflow Trainer v2 is told of it: by one POST of JSON from the pod that has rank 0.
// A core.
//
// The field names are those of its API (trainjob_types.go, TrainJobStatus): alpha, behind the gate
// TrainJobStatus.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/status/job_snapshot.h"

namespace ddprun::launcher {

// Where and how, from KUBEFLOW_TRAINER_SERVER_URL, _CA_CERT and _TOKEN of a pod. The last two are
// paths; the token lives for an hour and is replaced in its file.
struct TrainerServer {
  std::string url, authority_file, token_file;
};

// `exit_status`: the job is over, and nothing goes at any pace; otherwise it goes on. What is not
// known is left out.
std::string trainer_status(const JobSnapshot& job, std::int64_t now_unix_s,
                           std::optional<int> exit_status);

}  // namespace ddprun::launcher
