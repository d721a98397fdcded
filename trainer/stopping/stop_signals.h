// The signals that ask a training process to stop, as wishes that the training loop asks for.
//
//   SIGUSR1          a wish from the start on, and never more than that
//   SIGTERM, SIGINT  end the process, until hold() says that there is something to keep; then they
//                    are wishes, and a second one ends it at once. What comes within a second of
//                    the first is the same wish told twice: Slurm and mpirun tell a launcher and
//                    its workers, and the launcher tells the workers again.
//   SIGHUP           the same, but that it is nobody's second one: a shell and the kernel tell of
//                    one lost terminal, each in its time
//
// Where a process is with its wish, and what leads from there to where (-: stays):
//
//                               hold()   agreed()   stand_alone()   let_go()
//   Free    nothing to keep     Voting   -          Alone           -
//   Voting  till all agree, or  -        Agreed     Alone           Free; a wish ends the process
//           the patience ends
//   Agreed  all stop            -        -          Alone           Free
//   Alone   by itself           Voting   -          -               Free; a wish ends the process
//
// And from each of them done() leads to the end: a signal there changes nothing of how it ended.
//
// A wish must not hang: if the ranks have not agreed within the patience, because one of them will
// never come, the process ends as if it had no handler; or stands alone (interrupt_steps()). A
// signal that the process ignores (nohup) stays ignored. One object at a time; the handlers only
// set flags. SIGALRM is this object's.
#pragma once

#include "trainer/stopping/stop_agreement.h"

namespace ddprun::trainer {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // The handlers go, unless all is done.
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on there is something to keep. `tell`: say on stderr that a signal has come; one rank
  // is enough.
  void hold(bool tell);
  // Until the next hold() they end the process again, and one that came before does so now, unless
  // all have agreed: it waits for others, and is in no step.
  void let_go();
  // Until the next hold() this process alone looks after its wish, by itself and at once: it waits
  // for others, and has something to keep that nobody else may have. No patience runs out.
  void stand_alone();
  // While the peers are met, who may have been told to end before they had anything to keep: after
  // 2 s the eventfd becomes readable, which ends the meeting, and then the patience begins. -1: no
  // more, and it begins now.
  void interrupt_meeting(int event_fd);
  // While steps are done: where the patience ends without a common one, because some rank hangs,
  // the eventfd becomes readable in place of this process's end. What it waits in has to end then,
  // so that it comes to stand_alone() within another patience. -1: no more.
  void interrupt_steps(int event_fd);
  void set_patience(double seconds);  // Of a signal that comes from now on.

  StopReason wish() const;  // The most urgent so far.
  // Not one that only announces an end.
  bool is_told_to_end() const { return wish() > StopReason::Asked; }

  // This thread waits for the disk, for as long as one of these lives: no vote can come meanwhile,
  // and what was saved before would be lost. The patience begins anew then. Where let_go() would
  // end the process it has the patience, too, from let_go() on.
  class DiskWait {
   public:
    DiskWait();
    ~DiskWait();
    DiskWait(const DiskWait&) = delete;
    DiskWait& operator=(const DiskWait&) = delete;
  };
  // The same for a rank that does not write: another one may wait for the disk from now on, and who
  // waits for that one waits as long. Ends with all_came().
  static void writer_may_wait();
  void all_came();  // All ranks have met since.

  // All ranks stop: the end takes as long as it takes, or until a second signal.
  void agreed();
  // All that this process had to do is done and kept, on all ranks. A signal that asks for the end
  // ends it at once, as its own end would: with this code. To the end of the process, which may
  // take a while (LibTorch's globals, MPI) and would look like a failure otherwise.
  void done(int exit_code);
};

}  // namespace ddprun::trainer
