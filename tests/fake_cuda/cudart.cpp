// The functions of libcudart that this project and the fake libnccl call, without a GPU.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fake_cuda/contexts.h"
#include "tests/fake_cuda/cudart_objects.h"
#include "tests/fake_cuda/switches.h"

using ddprun::fake_cuda::device_state;
using ddprun::fake_cuda::number_of;
using ddprun::fake_cuda::switched;

namespace {

// Never destroyed: streams' threads may outlive main.
struct Runtime {
  std::mutex mutex;
  std::set<cudaStream_t> streams;
  std::map<int, cudaStream_t> null_streams;      // By device.
  std::map<cudaStream_t, CUgraph_st*> captures;  // Those under way.
  std::deque<CUevent_st> events;
};
Runtime& runtime() {
  static auto& instance = *new Runtime;
  return instance;
}

std::mutex objects_mutex;
thread_local int current_device = 0;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
thread_local cudaError_t last_error = cudaSuccess;
std::atomic<unsigned long> contexts = 0;

// Who checks a kernel that he launches next is told of it, if nobody has asked before. That work is
// not done yet is no error.
cudaError_t told(cudaError_t answer) {
  if (answer != cudaSuccess && answer != cudaErrorNotReady) last_error = answer;
  return answer;
}

// Whether a call that may not be made while `graph` is recorded spoils it, by the rules of
// cudaThreadExchangeStreamCaptureMode().
bool is_spoilt_by_this_thread(const CUgraph_st& graph) {
  if (capture_mode == cudaStreamCaptureModeRelaxed) return false;
  if (graph.recorder == std::this_thread::get_id()) {
    return graph.mode != cudaStreamCaptureModeRelaxed;
  }
  return capture_mode == cudaStreamCaptureModeGlobal && graph.mode == cudaStreamCaptureModeGlobal;
}

// For each call that looks at, waits for or frees something: it is no part of a graph. `of_device`:
// it concerns all streams, and one of them that is captured can be neither asked nor waited for.
cudaError_t outside_graphs(bool of_device = false) {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  bool spoils = false;
  for (const auto& [stream, graph] : all.captures) {
    if (!is_spoilt_by_this_thread(*graph) && !(of_device && stream->device == current_device))
      continue;
    graph->spoilt = spoils = true;
  }
  return told(spoils ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

// The same for a call about one stream, which it spoils in any mode.
cudaError_t outside_graph_of(cudaStream_t stream) {
  {
    const std::lock_guard lock(runtime().mutex);
    const auto capture = runtime().captures.find(stream);
    if (capture != runtime().captures.end()) {
      capture->second->spoilt = true;
      return told(cudaErrorStreamCaptureUnsupported);
    }
  }
  return outside_graphs();
}

cudaEvent_t alive(cudaEvent_t event, const char* function) {
  if (!event->destroyed) return event;
  std::fprintf(stderr, "fake CUDA: %s of an event that was destroyed\n", function);
  std::abort();
}

// The current device, which has a context from here on.
int used_device() {
  contexts |= 1UL << current_device;
  return current_device;
}

// The null stream, and the two constants that stand for it, are one stream of each device.
cudaStream_t real(cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread) {
    return stream;
  }
  Runtime& all = runtime();
  const int device = used_device();
  const std::lock_guard lock(all.mutex);
  cudaStream_t& null_stream = all.null_streams[device];
  if (null_stream == nullptr) all.streams.insert(null_stream = new CUstream_st(device));
  return null_stream;
}

void drop(cudaUserObject_t object, unsigned count) {
  {
    const std::lock_guard lock(objects_mutex);
    object->references -= count;
    if (object->references > 0) return;
  }
  object->destroy(object->data);
  delete object;
}

void keep(cudaUserObject_t object, unsigned count) {
  const std::lock_guard lock(objects_mutex);
  object->references += count;
}

// As cudaFree does: any kernel of the device might use the memory.
void wait_for_device() {
  std::set<cudaStream_t> streams;
  const int device = used_device();
  {
    const std::lock_guard lock(runtime().mutex);
    streams = runtime().streams;
  }
  for (cudaStream_t stream : streams) {
    if (stream->device == device) stream->synchronize();
  }
}

void* memory_of(std::size_t bytes) {
  used_device();
  return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
}

}  // namespace

CUgraph_st::~CUgraph_st() {
  for (cudaUserObject_t object : objects) drop(object, 1);
}

extern "C" {

unsigned long fake_cuda_contexts() { return contexts; }
void fake_cuda_forget_contexts() { contexts = 0; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(number_of(switched("FAKE_CUDA_DEVICES"), 8));
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
  int devices = 0;
  cudaGetDeviceCount(&devices);
  if (device < 0 || device >= devices) return told(cudaErrorInvalidDevice);
  current_device = device;
  used_device();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = outside_graphs(/*of_device=*/true)) return error;
  wait_for_device();
  return device_state();
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = std::exchange(last_error, cudaSuccess);
  return device_state() != cudaSuccess ? device_state() : error;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    default:
      return "unrecognized error code";
  }
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(runtime().mutex);
  runtime().streams.insert(*stream = new CUstream_st(used_device()));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  stream->end_after_work();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t error = outside_graph_of(real(stream))) return error;
  return real(stream)->query();
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = outside_graph_of(real(stream))) return error;
  return real(stream)->synchronize();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  real(stream)->give([function, data] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = real(stream)->recorded ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  cudaStreamIsCapturing(stream, status);
  if (id != nullptr && real(stream)->recorded) *id = real(stream)->recorded->id;
  if (graph != nullptr) *graph = real(stream)->recorded.get();
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  static std::atomic<unsigned long long> captures = 0;
  cudaStream_t const captured = real(stream);
  captured->recorded = std::make_unique<CUgraph_st>();
  captured->recorded->id = ++captures;
  captured->recorded->mode = mode;
  captured->recorded->recorder = std::this_thread::get_id();
  const std::lock_guard lock(runtime().mutex);
  runtime().captures[captured] = captured->recorded.get();
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  cudaStream_t const captured = real(stream);
  {
    const std::lock_guard lock(runtime().mutex);
    runtime().captures.erase(captured);
  }
  auto recorded = std::exchange(captured->recorded, nullptr);
  *graph = nullptr;
  if (!recorded) return told(cudaErrorIllegalState);
  if (recorded->spoilt) return told(cudaErrorStreamCaptureInvalidated);
  *graph = recorded.release();
  return cudaSuccess;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy,
                                 unsigned references, unsigned) {
  *object = new CUuserObject_st{data, destroy, references};
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count,
                                      unsigned flags) {
  if ((flags & cudaGraphUserObjectMove) == 0) keep(object, count);
  graph->objects.insert(graph->objects.end(), count, object);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{std::make_shared<CUgraph_st>()};
  (*exec)->graph->work = graph->work;
  (*exec)->graph->objects = graph->objects;
  for (cudaUserObject_t object : graph->objects) keep(object, 1);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Work& work : exec->graph->work) {
    real(stream)->give([graph = exec->graph, work] { work(); });
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const int device = used_device();
  const std::lock_guard lock(runtime().mutex);
  *event = &runtime().events.emplace_back(device, (flags & cudaEventDisableTiming) == 0);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  alive(event, "cudaEventRecord");
  if (real(stream)->device != event->device) return told(cudaErrorInvalidResourceHandle);
  const bool capturing = real(stream)->recorded != nullptr;
  const bool is_node = flags == cudaEventRecordExternal;
  if (is_node && !capturing) return told(cudaErrorInvalidValue);
  event->captured = capturing && !is_node;
  const auto place = std::make_shared<CUevent_st::Place>();
  event->place = place;
  real(stream)->give([place, event, is_node] {
    if (is_node) alive(event, "a graph's launch");
    const std::lock_guard lock(place->mutex);
    place->reached = true;
    place->at = std::chrono::steady_clock::now();
    place->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  alive(event, "cudaEventQuery");
  if (device_state() != cudaSuccess) return device_state();
  if (const cudaError_t error = outside_graphs()) return error;
  if (event->captured) return told(cudaErrorCapturedEvent);
  if (!event->place) return cudaSuccess;
  const std::lock_guard lock(event->place->mutex);
  return event->place->reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  if (const cudaError_t error = outside_graphs()) return error;
  if (from->device != to->device) return told(cudaErrorInvalidResourceHandle);
  std::chrono::steady_clock::time_point at[2];
  for (const auto& [event, when] : {std::pair{from, &at[0]}, {to, &at[1]}}) {
    alive(event, "cudaEventElapsedTime");
    if (event->captured) return told(cudaErrorInvalidValue);
    if (!event->tells_time || !event->place) return told(cudaErrorInvalidResourceHandle);
    const std::lock_guard lock(event->place->mutex);
    if (!event->place->reached) return cudaErrorNotReady;
    *when = event->place->at;
  }
  *ms = std::chrono::duration<float, std::milli>(at[1] - at[0]).count();
  return device_state();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  alive(event, "cudaStreamWaitEvent");
  if (!event->place) return cudaSuccess;
  real(stream)->give([place = event->place] {
    std::unique_lock lock(place->mutex);
    place->changed.wait(lock, [&] { return place->reached; });
  });
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  alive(event, "cudaEventDestroy")->destroyed = true;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (const cudaError_t error = outside_graphs()) return error;
  *data = memory_of(bytes);
  return told(*data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* data) {
  if (const cudaError_t error = outside_graphs(/*of_device=*/true)) return error;
  wait_for_device();
  std::free(data);
  return device_state();
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  if (const cudaError_t error = outside_graphs()) return error;
  used_device();
  std::memset(data, value, bytes);
  return device_state();
}
// The host's memory is pageable: what is to go from there is copied first, and what comes is there
// on return.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice) {
    const auto* const first = static_cast<const char*>(from);
    real(stream)->give([=, staged = std::vector<char>(first, first + bytes)] {
      std::memcpy(to, staged.data(), bytes);
    });
    return cudaSuccess;
  }
  real(stream)->give([=] { std::memcpy(to, from, bytes); });
  if (kind == cudaMemcpyDeviceToHost && real(stream)->recorded)
    return outside_graph_of(real(stream));
  return kind == cudaMemcpyDeviceToHost ? real(stream)->synchronize() : cudaSuccess;
}

}  // extern "C"
