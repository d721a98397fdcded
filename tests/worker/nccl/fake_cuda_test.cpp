// That the CUDA of the tests refuses what CUDA refuses while a graph is recorded: else the cases
// over it would show nothing of that.
#include <cuda_runtime_api.h>

#include <thread>

#include "tests/testing/catch.h"

namespace {

struct Recording {
  explicit Recording(cudaStreamCaptureMode mode) {
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDefault);
    cudaEventRecord(event, other_stream);
    cudaStreamSynchronize(other_stream);
    cudaStreamBeginCapture(stream, mode);
  }
  ~Recording() {
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other_stream);
    cudaEventDestroy(event);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  cudaError_t look() { return cudaEventQuery(event); }
  cudaError_t look_from_another_thread(cudaStreamCaptureMode own_mode) {
    cudaError_t answer = cudaErrorUnknown;
    std::thread([&] {
      cudaThreadExchangeStreamCaptureMode(&own_mode);
      answer = look();
    }).join();
    return answer;
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    cudaGraphDestroy(graph);
    return ended;
  }

  cudaStream_t stream = nullptr, other_stream = nullptr;
  cudaEvent_t event = nullptr;  // Long reached, on the other stream.
};

constexpr auto global = cudaStreamCaptureModeGlobal, of_thread = cudaStreamCaptureModeThreadLocal,
               relaxed = cudaStreamCaptureModeRelaxed;

}  // namespace

TEST_CASE("who may look at an event while a graph is recorded depends on both modes",
          "[worker][nccl]") {
  struct Case {
    cudaStreamCaptureMode of_graph, of_other_thread;
    bool own_look, others_look;  // Allowed.
  };
  for (const Case& known : {Case{global, global, false, false},
                            {global, of_thread, false, true},
                            {global, relaxed, false, true},
                            {of_thread, global, false, true},
                            {relaxed, global, true, true}}) {
    INFO(known.of_graph << " " << known.of_other_thread);
    for (const bool own : {false, true}) {
      Recording recording(known.of_graph);
      const cudaError_t answer =
          own ? recording.look() : recording.look_from_another_thread(known.of_other_thread);
      const bool allowed = own ? known.own_look : known.others_look;
      CHECK(answer == (allowed ? cudaSuccess : cudaErrorStreamCaptureUnsupported));
      CHECK(recording.end() == (allowed ? cudaSuccess : cudaErrorStreamCaptureInvalidated));
    }
  }
  cudaGetLastError();
}

TEST_CASE("what is captured is neither asked nor waited for, in any mode", "[worker][nccl]") {
  for (const auto& asks : {+[](Recording& recording) { return cudaStreamQuery(recording.stream); },
                           +[](Recording&) { return cudaDeviceSynchronize(); }}) {
    Recording recording(relaxed);
    CHECK(asks(recording) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaGetLastError() == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(recording.end() == cudaErrorStreamCaptureInvalidated);
  }
  cudaGetLastError();
}

TEST_CASE("a stream that waits for one that is captured is captured with it, and has to be joined",
          "[worker][nccl]") {
  for (const bool joined : {true, false}) {
    Recording recording(of_thread);
    cudaEvent_t forked = nullptr, back = nullptr;
    cudaEventCreateWithFlags(&forked, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&back, cudaEventDisableTiming);
    cudaEventRecord(forked, recording.stream);
    CHECK(cudaStreamWaitEvent(recording.other_stream, forked, 0) == cudaSuccess);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(recording.other_stream, &status);
    CHECK(status == cudaStreamCaptureStatusActive);
    cudaMemsetAsync(&status, 0, 0, recording.other_stream);
    cudaEventRecord(back, recording.other_stream);
    if (joined) CHECK(cudaStreamWaitEvent(recording.stream, back, 0) == cudaSuccess);
    CHECK(recording.end() == (joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
    cudaStreamIsCapturing(recording.other_stream, &status);
    CHECK(status == cudaStreamCaptureStatusNone);
    cudaEventDestroy(forked);
    cudaEventDestroy(back);
  }
  cudaGetLastError();
}

TEST_CASE("a captured stream waits for nothing outside of its graph", "[worker][nccl]") {
  Recording recording(relaxed);
  CHECK(cudaStreamWaitEvent(recording.stream, recording.event, 0) ==
        cudaErrorStreamCaptureIsolation);
  CHECK(recording.end() == cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST_CASE("the null stream is not captured, and no stream is twice", "[worker][nccl]") {
  CHECK(cudaStreamBeginCapture(nullptr, relaxed) == cudaErrorStreamCaptureUnsupported);
  Recording recording(relaxed);
  CHECK(cudaStreamBeginCapture(recording.stream, relaxed) == cudaErrorIllegalState);
  CHECK(recording.end() == cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}
