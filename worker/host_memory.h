// How much memory this process may still take before the kernel kills somebody for it: what the
// host has left, or less where a control group (a container, a Slurm job) limits it.
//
// Shared memory needs the question. The kernel gives a memfd as much as is asked of it, page after
// page, and shoots other programs to find it; ordinary memory is refused, where it is far too much.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ddprun::worker {

inline constexpr std::uint64_t unlimited_memory = UINT64_MAX;

// In bytes: what can be had without taking any of it from other programs, and free swap, or less
// where a control group has less. Under `root`, where tests have a /proc and a /sys of their own.
// unlimited_memory where nothing tells. Some hundred microseconds.
std::uint64_t memory_left(const std::string& root = "");

// "8.0 GiB of memory are asked for, and 3.1 GiB are left"; empty where there is enough.
std::string lack_of_memory(std::uint64_t wanted, std::uint64_t left);

// Whole cache lines, which begin as zeros. `lack`: what is known to be lacking, and is asked for
// otherwise. Throws OutOfMemory("`failed`: why").
std::shared_ptr<void> zeroed_memory(std::size_t bytes, const std::string& failed,
                                    std::string lack = "");

}  // namespace ddprun::worker
