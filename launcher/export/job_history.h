// What was seen of a job, for the curves of a page that somebody opens later: snapshots in, the
// same records out that ddprun plot draws. A core; bounded, however long the job.
#pragma once

#include "launcher/status/job_snapshot.h"
#include "plot/run_records.h"

namespace ddprun::launcher {

class JobHistory {
 public:
  // A later snapshot than those before; `now_s` since 1970, by a clock that is not set meanwhile.
  void add(const JobSnapshot& job, double now_s);

  const plot::RunRecords& records() const { return records_; }

 private:
  void note_attempt(const JobSnapshot& job, double now_s);
  void note_failures(const JobSnapshot& job, double now_s);
  void note_progress(const JobSnapshot& job);

  plot::RunRecords records_;
  int attempts_ = 0;
  int failures_ = 0;
  bool awaits_step_ = false;  // Of an attempt after the first one: from where it went on.
};

}  // namespace ddprun::launcher
