// Streams, events and graphs of a libcudart without a GPU.
#include <algorithm>
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

using namespace ddprun::fake_cuda;

namespace {

// Never destroyed: streams' threads may outlive main.
struct Runtime {
  std::mutex mutex;
  std::set<cudaStream_t> streams;
  std::map<int, cudaStream_t> null_streams;                      // By device.
  std::map<cudaStream_t, std::shared_ptr<CUgraph_st>> captures;  // Those under way.
  std::map<cudaGraph_t, std::shared_ptr<CUgraph_st>> graphs;
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

// Whether a call that may not be made while `graph` is recorded spoils it, by the rules of
// cudaThreadExchangeStreamCaptureMode().
bool is_spoilt_by_this_thread(const CUgraph_st& graph) {
  if (capture_mode == cudaStreamCaptureModeRelaxed) return false;
  if (graph.recorder == std::this_thread::get_id()) {
    return graph.mode != cudaStreamCaptureModeRelaxed;
  }
  return capture_mode == cudaStreamCaptureModeGlobal && graph.mode == cudaStreamCaptureModeGlobal;
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

cudaEvent_t alive(cudaEvent_t event, const char* function) {
  if (!event->destroyed) return event;
  std::fprintf(stderr, "fake CUDA: %s of an event that was destroyed\n", function);
  std::abort();
}

void take_over(Before& all, const Before& more) {
  for (const auto& [stream, count] : more) all[stream] = std::max(all[stream], count);
}

// Whether what all streams have put into the graph comes before the end of the one that began it.
bool is_joined(const CUgraph_st& graph, cudaStream_t begun) {
  const Before& end = graph.before.at(begun);
  return std::all_of(graph.before.begin(), graph.before.end(), [&](const auto& of) {
    const auto own = of.second.find(of.first);
    const auto seen = end.find(of.first);
    return own == of.second.end() || (seen != end.end() && seen->second == own->second);
  });
}

cudaError_t spoil(const std::shared_ptr<CUgraph_st>& graph, cudaError_t error) {
  if (graph) graph->spoilt = true;
  return told(error);
}

// A wait for an event of a graph makes the stream a part of it; no other wait may cross its border.
cudaError_t wait_in_graph(cudaStream_t stream, CUevent_st& event) {
  const auto graph = event.captured ? event.graph.lock() : nullptr;
  if (!graph || !graph->under_way)
    return spoil(stream->recorded,
                 event.captured ? cudaErrorCapturedEvent : cudaErrorStreamCaptureIsolation);
  if (stream->recorded && stream->recorded != graph) {
    graph->spoilt = true;
    return spoil(stream->recorded, cudaErrorStreamCaptureMerge);
  }
  const std::lock_guard lock(graph->mutex);
  take_over(graph->before[stream], event.before);
  if (stream->recorded) return cudaSuccess;
  stream->recorded = graph;
  const std::lock_guard of_all(runtime().mutex);
  runtime().captures[stream] = graph;
  return cudaSuccess;
}

// For a test that looks at the output of processes.
struct TellsContexts {
  ~TellsContexts() {
    const char* rank = std::getenv("RANK");
    if (rank == nullptr || !switched("FAKE_CUDA_TELL")) return;
    std::fprintf(stderr, "rank %s had contexts on GPUs %#lx\n", rank, contexts.load());
  }
};
const TellsContexts at_end;

}  // namespace

namespace ddprun::fake_cuda {

cudaError_t told(cudaError_t answer) {
  if (answer != cudaSuccess && answer != cudaErrorNotReady) last_error = answer;
  return answer;
}

cudaError_t outside_graphs(bool of_device) {
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

int used_device() {
  contexts |= 1UL << current_device;
  return current_device;
}

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

}  // namespace ddprun::fake_cuda

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

cudaError_t cudaPeekAtLastError() {
  return device_state() != cudaSuccess ? device_state() : last_error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(runtime().mutex);
  runtime().streams.insert(*stream = new CUstream_st(used_device()));
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
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
  if (stream != captured) return told(cudaErrorStreamCaptureUnsupported);  // The null stream.
  if (captured->recorded) return spoil(captured->recorded, cudaErrorIllegalState);
  const auto graph = std::make_shared<CUgraph_st>();
  graph->id = ++captures;
  graph->mode = mode;
  graph->recorder = std::this_thread::get_id();
  graph->before[captured] = {};
  captured->recorded = graph;
  const std::lock_guard lock(runtime().mutex);
  runtime().captures[captured] = graph;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  cudaStream_t const captured = real(stream);
  const auto recorded = captured->recorded;
  *graph = nullptr;
  if (!recorded) return told(cudaErrorIllegalState);
  const std::lock_guard lock(runtime().mutex);
  for (const auto& [part, ignored] : recorded->before) {
    part->recorded = nullptr;
    runtime().captures.erase(part);
  }
  recorded->under_way = false;
  if (recorded->spoilt) return told(cudaErrorStreamCaptureInvalidated);
  if (!is_joined(*recorded, captured)) return told(cudaErrorStreamCaptureUnjoined);
  *graph = recorded.get();
  runtime().graphs[*graph] = recorded;
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
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->work.size();  // LibTorch asks for no more, and warns of an empty one.
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
  std::shared_ptr<CUgraph_st> last;  // Its objects end without the lock.
  const std::lock_guard lock(runtime().mutex);
  const auto known = runtime().graphs.find(graph);
  if (known == runtime().graphs.end())
    return graph == nullptr ? cudaSuccess : told(cudaErrorInvalidValue);
  last = std::move(known->second);
  runtime().graphs.erase(known);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const int device = used_device();
  const std::lock_guard lock(runtime().mutex);
  *event = &runtime().events.emplace_back(device, (flags & cudaEventDisableTiming) == 0);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  alive(event, "cudaEventRecord");
  if (real(stream)->device != event->device) return told(cudaErrorInvalidResourceHandle);
  const auto graph = real(stream)->recorded;
  const bool capturing = graph != nullptr;
  const bool is_node = flags == cudaEventRecordExternal;
  if (is_node && !capturing) return told(cudaErrorInvalidValue);
  event->captured = capturing && !is_node;
  if (event->captured) {
    const std::lock_guard lock(graph->mutex);
    event->graph = graph;
    event->before = graph->before[real(stream)];
    return cudaSuccess;
  }
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
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  alive(event, "cudaEventSynchronize");
  if (const cudaError_t error = outside_graphs()) return error;
  if (event->captured) return told(cudaErrorCapturedEvent);
  if (!event->place) return device_state();
  const auto place = event->place;
  std::unique_lock lock(place->mutex);
  // A device that fails reaches nothing any more, and wakes nobody.
  constexpr auto look = std::chrono::milliseconds{10};
  while (!place->changed.wait_for(lock, look, [&] { return place->reached; })) {
    if (device_state() != cudaSuccess) break;
  }
  return device_state();
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
  cudaStream_t const waiting = real(stream);
  if (event->captured || (waiting->recorded && event->place)) return wait_in_graph(waiting, *event);
  if (!event->place) return cudaSuccess;
  waiting->give([place = event->place] {
    std::unique_lock lock(place->mutex);
    place->changed.wait(lock, [&] { return place->reached; });
  });
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  alive(event, "cudaEventDestroy")->destroyed = true;
  return cudaSuccess;
}

}  // extern "C"
