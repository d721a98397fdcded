// all_reduce over the CPU communicator, the call that training lives on. The buffer is cut into
// chunks and every chunk into one slice per rank. Rank r collects the contributions to its slice,
// combines them (reduce.h) and hands the result to all. As many bytes as a ring moves, in two hops
// instead of 2 (W - 1).
//
//           chunk 0               chunk 1          ...
//   | r0 | r1 | r2 | r3 | r0 | r1 | r2 | r3 |         slice rN is combined by rank N
//
// Memory from allocate() is read and written in place by the ranks of a host; other memory is
// copied through shared buffers small enough for the cache, the next chunk while peers combine. Why
// two buffers per rank are enough: host_group.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/cpu/cpu_peers.h"
#include "worker/cpu/layout.h"
#include "worker/cpu/remote_slices.h"

namespace ddprun::worker {

// One all_reduce from start to end, between two ranks at least.
class CpuAllReduce {
 public:
  // `slices` are for chunks of `chunk_bytes`. All must outlive this object.
  CpuAllReduce(CpuPeers& peers, RemoteSlices& slices, std::size_t chunk_bytes,
               const CpuPeers::Running& running, void* data);

  void run();

 private:
  std::uint64_t step(std::uint64_t k) const { return running_.first_step + k; }
  bool in_place() const { return place_.allocation != 0; }
  void announce();
  void stage(std::uint64_t k);  // Copies our contribution to where local peers read it.
  void meet_peers();
  void post_contributions(std::uint64_t k);
  void post_results(std::uint64_t k);
  void combine(std::uint64_t k);
  void fetch(std::uint64_t k);  // Copies the local peers' results out of their buffers.

  CpuPeers& peers_;
  HostGroup* host_;  // Null where there are no local peers.
  RemoteSlices& slices_;
  const CpuPeers::Running& running_;
  unsigned char* data_;
  std::size_t bytes_;
  Layout layout_;
  HostGroup::Place place_;
  bool results_wanted_ = false;         // A local peer reads results from the shared buffers.
  std::vector<unsigned char*> mapped_;  // Local peers' data where it can be used in place.
  std::vector<std::uint64_t> tickets_, next_tickets_;  // Contributions to this and the next chunk.
};

}  // namespace ddprun::worker
