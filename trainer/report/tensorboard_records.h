// The bytes of a TensorBoard event file. A core: values in, bytes out.
//
// A file is a sequence of TFRecords (tensorflow/core/lib/io/record_writer.h):
//   uint64 length | uint32 masked CRC-32C of the length | payload | uint32 masked CRC-32C of it
// all little-endian, masked = rotate right by 15 bits, plus 0xa282ead8. A payload is a protobuf
// message Event (tensorboard/compat/proto/event.proto):
//   Event       1 wall_time double, 2 step int64, 3 file_version string, 5 summary, 7 session_log
//   Summary     1 value: Value 1 tag string, 2 simple_value float, 8 tensor, 9 metadata
//   SessionLog  1 status: START = 1
// The first event of a file has file_version "brain.Event:2". A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::trainer {

// One TFRecord around `payload`.
std::string tfrecord(std::string_view payload);

struct Scalar {
  std::string tag;  // "train/loss"
  float value = 0;
};

// When, and after which optimizer step. wall_time_s: seconds since 1970.
struct EventTime {
  double wall_time_s = 0;
  std::int64_t step = 0;
};

// Records, framed, to be written one after the other.
std::string version_record(double wall_time_s);
// Whoever reads on forgets what earlier files of the folder hold for this step and later ones: a
// run went on from an older checkpoint.
std::string session_start_record(const EventTime& time);
std::string scalars_record(const EventTime& time, std::span<const Scalar> scalars);
// Markdown, shown under "Text".
std::string text_record(const EventTime& time, std::string_view tag, std::string_view markdown);

// The name of a new file among those that the folder holds already: TensorBoard reads files in the
// order of their names, so a later file must have a later name, however quickly a run restarts.
std::string event_file_name(const std::vector<std::string>& existing, std::int64_t unix_s,
                            std::string_view host, std::int64_t pid);

}  // namespace ddprun::trainer
