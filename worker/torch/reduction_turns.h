// Whose gradients go next when several DistributedDataParallel share a communicator. A core: no
// sockets, threads or clock.
//
//   forwards:  generator, judge       backward:  judge -> generator
//   turns:     judge, generator       judge's buckets go as they fill; the generator's follow as
//                                     soon as all of judge's are under way
//
// A communicator's ranks must make the same reductions in the same order, but gradients need not
// arrive in one: a bucket with a parameter that this rank's loss does not use is full at the end of
// backward, and on its peer in the middle of it. So the order is taken from what ranks do
// alike whatever their losses look like: the order of their forwards, of which backward meets the
// last one first. The reductions of one member are never interleaved with another's. Who took no
// part in a backward is known at its end only; until then those behind it wait.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace ddprun::worker {

class ReductionTurns {
 public:
  // Numbered in the order of construction, which is collective: the same on all ranks.
  using Member = std::size_t;

  Member enter();
  void leave(Member member);

  // A forward ran whose backward will reduce: this member's turn comes before all others'.
  void expect(Member member);

  // Who may reduce now, while backward goes on. Nobody while several members are there and none
  // is expected: only the end of backward tells who of them takes part.
  std::optional<Member> turn() const;

  // This member has nothing more to reduce in this backward. Returns who is next.
  std::optional<Member> pass(Member member);

  // Those of `running` in the order in which the end of backward must finish them: by their turns,
  // then those whose forward nobody saw, by number.
  std::vector<Member> sorted(const std::vector<Member>& running) const;

 private:
  std::vector<Member> members_;   // Ascending.
  std::vector<Member> expected_;  // Members, the next turn first, each once.
  Member next_ = 0;
};

}  // namespace ddprun::worker
