// Which GPUs this process has a context on, as the fake runtime sees it: a real one takes some
// hundred megabytes of a GPU for each process that ever chose it, made a stream, an event or memory
// there, or gave work to its null stream. A thread that chooses none is on GPU 0.
#pragma once

extern "C" {

// GPUs as bits, from bit 0 on.
unsigned long fake_cuda_contexts();
void fake_cuda_forget_contexts();

}  // extern "C"
