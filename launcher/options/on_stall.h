// --on-stall.
#pragma once

namespace ddprun::launcher {

// What follows of a stall, besides that it is told.
enum class OnStall {
  Report,  // Nothing.
  Auto,    // Who is behind counts as lost where that costs the job no more than a step.
  Fail,    // Who is behind counts as lost, or all that stand where nobody knows that.
};

}  // namespace ddprun::launcher
