// Each list is whole: the compiler tells of a type or operation that has no counterpart yet.
#include "worker/nccl/nccl_types.h"

#include <charconv>
#include <cstddef>

namespace ddprun::worker {

ncclDataType_t to_nccl(DataType type) {
  switch (type) {
    case DataType::Float32:
      return ncclFloat32;
    case DataType::Float64:
      return ncclFloat64;
    case DataType::Float16:
      return ncclFloat16;
    case DataType::BFloat16:
      return ncclBfloat16;
    case DataType::Int32:
      return ncclInt32;
    case DataType::Int64:
      return ncclInt64;
    case DataType::UInt8:
      return ncclUint8;
  }
  throw CommunicatorError("unknown data type");
}

ncclRedOp_t to_nccl(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return ncclSum;
    case ReduceOp::Average:
      return ncclAvg;
    case ReduceOp::Max:
      return ncclMax;
    case ReduceOp::Min:
      return ncclMin;
  }
  throw CommunicatorError("unknown operation");
}

std::string to_text(const ncclUniqueId& id) {
  std::string text;
  // As text without a space: it stands behind the rank's address in one value.
  for (const char c : id.internal) {
    text += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

ncclUniqueId parse_nccl_id(const std::string& text) {
  ncclUniqueId id{};
  // A rank 0 that does not use NCCL has published something else.
  bool whole = text.size() == 2 * sizeof(id.internal);
  for (std::size_t i = 0; whole && i < sizeof(id.internal); ++i) {
    const char* const digits = text.data() + 2 * i;
    unsigned char byte = 0;
    whole = std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    id.internal[i] = static_cast<char>(byte);
  }
  if (!whole) throw CommunicatorError("rank 0 published no NCCL id: do all ranks use CUDA?");
  return id;
}

}  // namespace ddprun::worker
