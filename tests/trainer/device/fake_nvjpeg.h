// What a test tells the nvJPEG of its own (fake_nvjpeg.cpp), and what that has seen.
#pragma once

namespace ddprun::trainer::testing {

struct FakeNvJpeg {
  bool has_gpu = true;
  bool has_engines = true;
  int engines_status = 0;   // What a decoder that is to use them is refused with.
  int width_max = 1 << 20;  // Wider files are not decoded: its header check says so.
  int refused_batches = 0;  // So many of the next ones are refused.

  int batches = 0;   // Decoded,
  int files = 0;     // of so many files.
  int prepared = 0;  // How often a batch size was announced.
  int open = 0;      // Handles, states and headers that were not given back.
};

inline constexpr char fake_nvjpeg_entry[] = "ddprun_fake_nvjpeg";

}  // namespace ddprun::trainer::testing
