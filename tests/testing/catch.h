// Catch2 2 (Debian 12) and 3 (Debian 13, Ubuntu 24.04) under one include: the one that is linked. A
// machine may have headers of both. Their matchers have other names each: contains() and
// message_of() of text.h do without.
#pragma once

#include <iostream>

#if DDPRUN_CATCH2 >= 3
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

// Ends a test that cannot run on this machine; ctest reports it as skipped. `reason` is a string
// that says what is missing.
#define DDPRUN_SKIP(reason)                            \
  do {                                                 \
    std::cout << "SKIPPED: " << (reason) << std::endl; \
    SUCCEED();                                         \
    return;                                            \
  } while (false)
