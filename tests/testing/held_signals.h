// For tests that send a signal to a launcher which has started workers.
//
// ThreadSanitizer's runtime, once clone(CLONE_VM) has run, keeps a signal that arrives in
// epoll_wait to itself until the loop wakes for another reason. The kernel has delivered it by
// then; a program without that runtime handles it at once.
#pragma once

#include "tests/testing/catch.h"

#if defined(__SANITIZE_THREAD__)
#define DDPRUN_SKIP_IF_SIGNALS_ARE_HELD() \
  DDPRUN_SKIP("ThreadSanitizer holds signals back in a process that has used clone(CLONE_VM)")
#else
#define DDPRUN_SKIP_IF_SIGNALS_ARE_HELD() static_cast<void>(0)
#endif
