// A snapshot in which everything is said that can be.
#pragma once

#include "launcher/status/job_snapshot.h"

namespace ddprun::testing {

inline launcher::JobSnapshot full_job() {
  using namespace launcher;
  JobSnapshot job{.run_id = "night \"7\"",
                  .program = "./train",
                  .host = "node1",
                  .launcher_id = "5a17",
                  .launcher_pid = 4100,
                  .started_unix_s = 1'700'000'000,
                  .taken_s = 12.5,
                  .state = NodeState::Running,
                  .since_s = 61.25,
                  .attempt = 2,
                  .attempts = 3,
                  .term = 1,
                  .max_restarts = 5,
                  .node_rank = 1,
                  .nodes = 2,
                  .first_rank = 8,
                  .workers = 2,
                  .world_size = 10,
                  .master = "node0:29500",
                  .spares = 1,
                  .spares_ready = 1,
                  .log_dir = "/logs/attempt_2"};
  job.ranks.push_back(
      {.rank = 8,
       .local_rank = 0,
       .pid = 4127,
       .use = {.processes = 3, .threads = 9, .rss_bytes = 1 << 30, .cpu_s = 7.5, .state = 'R'},
       .gpu = GpuUse{.index = 3,
                     .busy = 0.97,
                     .memory_used = 7LL << 30,
                     .memory_total = 80LL << 30,
                     .own_bytes = 6LL << 30,
                     .clock = {Slowdown::Heat, 780, 1980, 92}},
       .progress = RankProgress{.step = 41,
                                .total_steps = 900,
                                .epoch = 2,
                                .phase = "backward",
                                .images = 4100,
                                .images_per_s = 512.5,
                                .loss = 0.25,
                                .step_s = 0.125,
                                .data_s = 0.025,
                                .wait_s = 0.0375,
                                .data_total_s = 2.5,
                                .wait_total_s = 1.5,
                                .age_s = 0.5,
                                .waiting_s = 0.25},
       .stdout_file = "/logs/attempt_2/0/stdout.log",
       .stderr_file = "/logs/attempt_2/0/stderr.log"});
  job.ranks.push_back(
      {.rank = 9, .local_rank = 1, .pid = 4128, .state = RankState::Failed, .signal = 9});
  job.failures.push_back({.time_unix_s = 1'700'000'100,
                          .attempt = 1,
                          .rank = 9,
                          .host = "node1",
                          .text = "rank 9 was killed by SIGKILL",
                          .what = "<b>out of memory</b>"});
  job.failures_total = 4;
  job.others.push_back({.host = "node0",
                        .node_rank = 0,
                        .silent_s = 0.25,
                        .age_s = 0.5,
                        .launcher_id = "c0de",
                        .launcher_pid = 99,
                        .state = NodeState::Running,
                        .workers = 1});
  job.others[0].ranks.push_back({.rank = 7, .pid = 100});
  return job;
}

}  // namespace ddprun::testing
