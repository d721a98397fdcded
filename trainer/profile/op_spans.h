// Spans of LibTorch's operations ("aten::conv2d") and of the nodes of backward, on every thread.
#pragma once

#include "trainer/profile/span_recorder.h"

namespace ddprun::trainer {

// From now on while the recorder is open; nullptr: no more. One recorder a process. Call it while
// no other thread is inside LibTorch.
void record_operations_into(SpanRecorder* recorder);

}  // namespace ddprun::trainer
