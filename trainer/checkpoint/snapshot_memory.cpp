// safetensors all the way: what reads files of strangers also reads what a killed process has left.
#include "trainer/checkpoint/snapshot_memory.h"

#include <algorithm>
#include <string_view>

namespace ddprun::trainer {
namespace {

constexpr std::string_view ruin_mark = "the loss was no number";

class MemorySink : public SafetensorsSink {
 public:
  explicit MemorySink(worker::RestartMemory& memory) : memory_(memory) {}

  void write(const void* data, std::size_t bytes) override {
    if (!memory_.add(data, bytes)) throw SafetensorsError("it does not fit");
  }
  void overwrite(const std::string& bytes, std::size_t at) override {
    memory_.overwrite(bytes.data(), bytes.size(), at);
  }

 private:
  worker::RestartMemory& memory_;
};

}  // namespace

void SnapshotMemory::keep(const Safetensors& contents) {
  if (too_small_) return;
  memory_.begin();
  MemorySink sink(memory_);
  try {
    write_safetensors(sink, contents);
  } catch (const SafetensorsError&) {
    too_small_ = true;
    return;
  }
  memory_.commit();
}

void SnapshotMemory::mark_ruined() {
  memory_.clear();
  memory_.begin();
  if (memory_.add(ruin_mark.data(), ruin_mark.size())) memory_.commit();
}

bool SnapshotMemory::is_ruined() const {
  const auto found = memory_.contents();
  return std::find(found.begin(), found.end(), ruin_mark) != found.end();
}

std::vector<Safetensors> SnapshotMemory::read(const std::string& name) const {
  std::vector<Safetensors> found;
  for (const std::string_view content : memory_.contents()) {
    try {
      found.push_back(parse_safetensors(content, name));
    } catch (const SafetensorsError&) {  // As good as not there.
    }
  }
  return found;
}

}  // namespace ddprun::trainer
