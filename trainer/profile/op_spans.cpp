// LibTorch's global callback is a pair of plain functions, so the recorder is a global here.
#include "trainer/profile/op_spans.h"

#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <optional>

namespace ddprun::trainer {
namespace {

std::atomic<SpanRecorder*> recorder_at_work = nullptr;

struct Start : at::ObserverContext {
  std::int64_t ns = 0;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) {
  const SpanRecorder* const recorder = recorder_at_work;
  if (recorder == nullptr || !recorder->is_open()) return nullptr;
  auto start = std::make_unique<Start>();
  start->ns = SpanRecorder::now_ns();
  return start;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  SpanRecorder* const recorder = recorder_at_work;
  if (recorder == nullptr || context == nullptr) return;
  recorder->add(
      {.name = function.name(),
       .category = function.scope() == at::RecordScope::BACKWARD_FUNCTION ? "backward op" : "op",
       .start_ns = static_cast<Start*>(context)->ns,
       .end_ns = SpanRecorder::now_ns(),
       .thread = SpanRecorder::this_thread()});
}

}  // namespace

void record_operations_into(SpanRecorder* recorder) {
  static std::optional<at::CallbackHandle> handle;
  recorder_at_work = recorder;
  if (recorder != nullptr && !handle) {
    handle = at::addGlobalCallback(at::RecordFunctionCallback(begin, end));
  } else if (recorder == nullptr && handle) {
    at::removeCallback(*handle);
    handle.reset();
  }
}

}  // namespace ddprun::trainer
