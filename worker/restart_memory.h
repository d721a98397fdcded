// Memory of this node that outlives its workers: ddprun --restart-memory SIZE. What one attempt
// leaves there the next one finds, if the node and its launcher have lived on.
//
//   if (auto memory = RestartMemory::of_launcher()) {
//     for (const std::string_view found : memory->contents()) if (restore(found)) break;
//     ...
//     memory->begin(); memory->add(state.data(), state.size()); memory->commit();
//
// It has two halves, of which the older is replaced: a worker that is killed while it writes leaves
// the newer. All workers of a node share it; one of them writes, with one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace ddprun::worker {

class RestartMemory {
 public:
  // Nothing: this process has none, or it cannot be mapped.
  static std::optional<RestartMemory> of_launcher();
  // True for one of the processes that have it from the launcher, until that one ends: which of
  // those that may each be the first of their node, as with --virtual-local-rank, is to write.
  // False also where there is no such memory.
  static bool become_writer();
  // `fd` may be closed afterwards.
  static std::optional<RestartMemory> map(int fd);
  RestartMemory(RestartMemory&& other) noexcept;
  RestartMemory& operator=(RestartMemory&& other) noexcept;
  ~RestartMemory();

  std::size_t bytes_max() const;  // Of one content.

  // What is there whole, the newest first; valid until a worker of this node writes something. It
  // may come from a process that was killed at any moment, or be somebody else's: check it.
  std::vector<std::string_view> contents() const;

  // In pieces: begin(), add() and overwrite() as often as needed, commit(). False: it does not fit;
  // then nothing is replaced, but the older content is gone.
  void begin();
  bool add(const void* data, std::size_t bytes);
  bool overwrite(const void* data, std::size_t bytes, std::size_t at);
  void commit();

  void clear();

 private:
  struct Half;
  RestartMemory(void* pages, std::size_t bytes) : pages_(pages), bytes_(bytes) {}
  Half& half(int number) const;
  char* data_of(int number) const;

  void* pages_ = nullptr;
  std::size_t bytes_ = 0;
  int writing_ = 0;        // Which half.
  std::size_t added_ = 0;  // Of it.
};

}  // namespace ddprun::worker
