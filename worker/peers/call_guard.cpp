// What every call is asked before it begins, and how it ends when it cannot go on.
#include "worker/peers/call_guard.h"

#include <cassert>

#include "worker/error_file.h"

namespace ddprun::worker {

bool is_supported(DataType type, ReduceOp op) {
  const bool integer =
      type == DataType::Int32 || type == DataType::Int64 || type == DataType::UInt8;
  return !(integer && op == ReduceOp::Average);
}

CallGuard::CallGuard(int rank, int world_size, Abortable& group)
    : rank_(rank),
      world_size_(world_size),
      group_(group),
      sent_(static_cast<std::size_t>(world_size)),
      received_(static_cast<std::size_t>(world_size)) {
  assert(rank >= 0 && rank < world_size);
}

Call CallGuard::begin(CallKind kind, std::size_t count, DataType type,
                      std::initializer_list<const void*> pointers, ReduceOp op, int root) {
  Call call;
  call.kind = kind;
  call.count = count;
  call.type = type;
  call.op = op;
  call.root = root;
  call.sequence = ++calls_;
  group_.tell_untold();
  throw_if_aborted(call);
  // Counted before anything is checked: a call that is refused here is made by the peers all the
  // same, and theirs must not meet this rank's next one.
  require(count <= SIZE_MAX / 16 / static_cast<std::size_t>(world_size_), call,
          "this many elements do not fit any memory");
  require(is_supported(type, op), call, "the average of integers is not an integer: use sum");
  for (const void* pointer : pointers) {
    require(pointer != nullptr || count == 0, call, "the data is a null pointer");
  }
  require(root >= 0 && root < world_size_, call, "there is no such root");
  return call;
}

Call CallGuard::begin_message(const char* name, const void* data, std::size_t count, DataType type,
                              int peer, bool sends) {
  if (peer < 0 || peer >= world_size_ || peer == rank_) {
    throw CommunicatorError(std::string(name) + ": there is no other rank " + std::to_string(peer) +
                            " among " + std::to_string(world_size_));
  }
  Call call;
  call.kind = CallKind::Message;
  call.count = count;
  call.type = type;
  call.sequence = ++(sends ? sent_ : received_)[static_cast<std::size_t>(peer)];
  group_.tell_untold();
  throw_if_aborted(call);
  require(count <= SIZE_MAX / 16, call, "this many elements do not fit any memory");
  require(data != nullptr || count == 0, call, "the data is a null pointer");
  return call;
}

std::string CallGuard::text_of(const Call& call, const std::string& reason) const {
  return to_string(call) + " failed on rank " + std::to_string(rank_) + ": " + reason;
}

void CallGuard::throw_aborted(const Call& call) const {
  throw CommunicatorError(text_of(call, group_.reason()));
}

void CallGuard::fail(const Call& call, const std::string& reason) {
  // The group's first reason is what is thrown, which need not be this one: who fails because a
  // peer has ended must say so in the peer's words.
  group_.abort(reason);
  throw_aborted(call);
}

void CallGuard::fail_alone(const Call& call, std::string_view problem) {
  const std::string reason = "rank " + std::to_string(rank_) + ": " + std::string(problem);
  if (!group_.aborted()) record_error_with_stack(text_of(call, reason));
  fail(call, reason);
}

void CallGuard::fail_occupied() {
  const std::string reason =
      "rank " + std::to_string(rank_) +
      ": a second thread is inside a call of this communicator, or a callback called it; one at a "
      "time may";
  if (!group_.aborted()) record_error_with_stack(reason);
  group_.abort(reason);
  throw CommunicatorError(reason);
}

CallGuard::Inside::Inside(CallGuard& guard) : guard_(guard) {
  if (guard_.occupied_.load(std::memory_order_relaxed)) guard_.fail_occupied();
  guard_.occupied_.store(true, std::memory_order_relaxed);
}

}  // namespace ddprun::worker
