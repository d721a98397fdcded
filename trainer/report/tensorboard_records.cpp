// Protobuf by hand: a few kinds of fields do not need a library and its code generator.
#include "trainer/report/tensorboard_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>

#include "trainer/report/crc32c.h"

namespace ddprun::trainer {
namespace {

constexpr std::string_view file_prefix = "events.out.tfevents.";

// Protobuf's wire types (protobuf.dev/programming-guides/encoding).
enum class Wire : std::uint32_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

template <typename Unsigned>
void add_little_endian(std::string& out, Unsigned value) {
  for (std::size_t byte = 0; byte < sizeof(value); ++byte) {
    out.push_back(static_cast<char>((value >> (8 * byte)) & 0xff));
  }
}

void add_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void add_key(std::string& out, std::uint32_t field, Wire wire) {
  add_varint(out, (field << 3) | static_cast<std::uint32_t>(wire));
}

void add_int(std::string& out, std::uint32_t field, std::int64_t value) {
  add_key(out, field, Wire::Varint);
  add_varint(out, static_cast<std::uint64_t>(value));
}

void add_double(std::string& out, std::uint32_t field, double value) {
  add_key(out, field, Wire::Fixed64);
  add_little_endian(out, std::bit_cast<std::uint64_t>(value));
}

void add_float(std::string& out, std::uint32_t field, float value) {
  add_key(out, field, Wire::Fixed32);
  add_little_endian(out, std::bit_cast<std::uint32_t>(value));
}

// A string or an embedded message.
void add_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  add_key(out, field, Wire::Bytes);
  add_varint(out, bytes.size());
  out += bytes;
}

std::string event(const EventTime& time) {
  std::string bytes;
  add_double(bytes, 1, time.wall_time_s);
  // Proto3 leaves out a field that has its default value.
  if (time.step != 0) add_int(bytes, 2, time.step);
  return bytes;
}

std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

}  // namespace

std::string tfrecord(std::string_view payload) {
  std::string record;
  add_little_endian(record, static_cast<std::uint64_t>(payload.size()));
  add_little_endian(record, masked_crc(record));
  record += payload;
  add_little_endian(record, masked_crc(payload));
  return record;
}

std::string version_record(double wall_time_s) {
  std::string bytes = event({wall_time_s, 0});
  add_bytes(bytes, 3, "brain.Event:2");
  return tfrecord(bytes);
}

std::string session_start_record(const EventTime& time) {
  std::string session;
  add_int(session, 1, 1);
  std::string bytes = event(time);
  add_bytes(bytes, 7, session);
  return tfrecord(bytes);
}

std::string scalars_record(const EventTime& time, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    add_bytes(value, 1, scalar.tag);
    add_float(value, 2, scalar.value);
    add_bytes(summary, 1, value);
  }
  std::string bytes = event(time);
  add_bytes(bytes, 5, summary);
  return tfrecord(bytes);
}

// As the text plugin wants it (tensorboard/plugins/text/summary.py): a tensor of one string, of
// type DT_STRING = 7, and the plugin's name in the metadata.
std::string text_record(const EventTime& time, std::string_view tag, std::string_view markdown) {
  std::string dimension, shape, tensor, plugin, metadata, value, summary;
  add_int(dimension, 1, 1);
  add_bytes(shape, 2, dimension);
  add_int(tensor, 1, 7);
  add_bytes(tensor, 2, shape);
  add_bytes(tensor, 8, markdown);
  add_bytes(plugin, 1, "text");
  add_bytes(metadata, 1, plugin);
  add_bytes(value, 1, tag);
  add_bytes(value, 8, tensor);
  add_bytes(value, 9, metadata);
  add_bytes(summary, 1, value);
  std::string bytes = event(time);
  add_bytes(bytes, 5, summary);
  return tfrecord(bytes);
}

std::string event_file_name(const std::vector<std::string>& existing, std::int64_t unix_s,
                            std::string_view host, std::int64_t pid) {
  for (const std::string& name : existing) {
    if (!name.starts_with(file_prefix)) continue;
    std::int64_t other_s = 0;
    const char* const digits = name.data() + file_prefix.size();
    const auto read = std::from_chars(digits, name.data() + name.size(), other_s);
    // A number that is no time of this century is some other program's.
    constexpr std::int64_t unix_s_max = 9'999'999'999;
    if (read.ec == std::errc{} && other_s < unix_s_max) unix_s = std::max(unix_s, other_s + 1);
  }
  return fmt::format("{}{:010}.{}.{}.0", file_prefix, unix_s, host, pid);
}

}  // namespace ddprun::trainer
