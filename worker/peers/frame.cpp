// Frames of the TCP connections between ranks: names and checks.
#include "worker/peers/frame.h"

#include <locale>
#include <sstream>

namespace ddprun::worker {
namespace {

using rendezvous::epoch_text;

const char* name_of(CallKind kind) {
  switch (kind) {
    case CallKind::AllReduce:
      return "all_reduce";
    case CallKind::AllGather:
      return "all_gather";
    case CallKind::ReduceScatter:
      return "reduce_scatter";
    case CallKind::Broadcast:
      return "broadcast";
    case CallKind::Barrier:
      return "barrier";
    case CallKind::Allocate:
      return "allocate";
    case CallKind::Message:
      return "send/recv";
  }
  return "unknown call";
}

const char* name_of(DataType type) {
  switch (type) {
    case DataType::Float32:
      return "float32";
    case DataType::Float64:
      return "float64";
    case DataType::Float16:
      return "float16";
    case DataType::BFloat16:
      return "bfloat16";
    case DataType::Int32:
      return "int32";
    case DataType::Int64:
      return "int64";
    case DataType::UInt8:
      return "uint8";
  }
  return "unknown type";
}

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return "sum";
    case ReduceOp::Average:
      return "average";
    case ReduceOp::Max:
      return "max";
    case ReduceOp::Min:
      return "min";
  }
  return "unknown operation";
}

}  // namespace

std::string to_string(const Call& call) {
  std::ostringstream text;
  text.imbue(std::locale::classic());  // Not the program's own, which may group digits.
  text << name_of(call.kind) << '(';
  if (call.kind == CallKind::Allocate) {
    text << call.count << " bytes";
  } else if (call.kind != CallKind::Barrier) {
    text << "count=" << call.count << ", " << name_of(call.type);
    if (call.kind == CallKind::AllReduce || call.kind == CallKind::ReduceScatter) {
      text << ", " << name_of(call.op);
    }
    if (call.kind == CallKind::Broadcast) text << ", root=" << call.root;
  }
  text << "), call " << call.sequence;
  return text.str();
}

std::string describe_mismatch(int rank, const Call& mine, int peer, const Call& theirs) {
  std::string text = "rank " + std::to_string(rank) + " called " + to_string(mine) + ", but rank " +
                     std::to_string(peer) + " called " + to_string(theirs);
  if (mine.kind != CallKind::Message && theirs.kind == CallKind::Message) {
    return text + "; a rank keeps at most " + std::to_string(kept_bytes_max >> 20) +
           " MiB of a peer's messages for after a collective: receive them before it, or post "
           "their irecv() first";
  }
  text += "; all ranks must make the same calls in the same order";
  if (mine.kind == CallKind::Message && theirs.kind != CallKind::Message) {
    text += ", and a message that is received before a collective must be sent before it";
  }
  return text;
}

FrameDecision check_frame(const FrameHeader& expected, const FrameHeader& received, int rank,
                          int peer) {
  const std::string from = "the connection from rank " + std::to_string(peer);
  if (received.magic != frame_magic) {
    return {FrameVerdict::Refuse, from + " carries bytes that are not a frame of ddprun"};
  }
  if (received.epoch < expected.epoch) {
    return {FrameVerdict::DropStale, from + " carries a frame of " + epoch_text(received.epoch) +
                                         "; this is " + epoch_text(expected.epoch)};
  }
  if (received.epoch > expected.epoch) {
    return {FrameVerdict::Refuse,
            "rank " + std::to_string(rank) + " is left over from " + epoch_text(expected.epoch) +
                ": rank " + std::to_string(peer) + " is in " + epoch_text(received.epoch)};
  }
  // The call before the sizes: other calls have other sizes, and the call is what one can mend.
  if (received.call != expected.call) {
    return {FrameVerdict::Refuse, describe_mismatch(rank, expected.call, peer, received.call)};
  }
  if (received.part != expected.part || received.bytes != expected.bytes) {
    return {FrameVerdict::Refuse,
            from + " carries part " + std::to_string(received.part) + " with " +
                std::to_string(received.bytes) + " bytes of " + to_string(expected.call) +
                " instead of part " + std::to_string(expected.part) + " with " +
                std::to_string(expected.bytes) + "; do all ranks run the same version?"};
  }
  return {FrameVerdict::Accept, ""};
}

}  // namespace ddprun::worker
