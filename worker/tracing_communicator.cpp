// The decorator that tells of each collective. isend() and irecv() are passed on untold: they end
// within other calls.
#include "worker/tracing_communicator.h"

#include <utility>

namespace ddprun::worker {
namespace {

// From its making to its end, however that comes.
class Span {
 public:
  Span(CollectiveTracer& tracer, const Collective& collective)
      : tracer_(tracer), collective_(collective), begun_(tracer.collective_begins(collective)) {}
  ~Span() { tracer_.collective_ends(collective_, begun_); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  CollectiveTracer& tracer_;
  Collective collective_;
  std::int64_t begun_;
};

class TracingCommunicator : public Communicator {
 public:
  TracingCommunicator(std::unique_ptr<Communicator> inner, CollectiveTracer& tracer)
      : inner_(std::move(inner)), tracer_(tracer) {}

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  std::string description() const override { return inner_->description(); }
  bool is_cuda() const override { return inner_->is_cuda(); }
  std::optional<int> cuda_device() const override { return inner_->cuda_device(); }
  bool shares_memory() const override { return inner_->shares_memory(); }

  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                  Stream stream) override {
    const Span span(tracer_, {"all_reduce", count * bytes_of(type), stream});
    inner_->all_reduce(data, count, type, op, stream);
  }

  void all_gather(const void* send, void* recv, std::size_t count, DataType type,
                  Stream stream) override {
    const Span span(tracer_, {"all_gather", count * bytes_of(type), stream});
    inner_->all_gather(send, recv, count, type, stream);
  }

  void reduce_scatter(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                      Stream stream) override {
    const std::size_t elements = count * static_cast<std::size_t>(inner_->world_size());
    const Span span(tracer_, {"reduce_scatter", elements * bytes_of(type), stream});
    inner_->reduce_scatter(send, recv, count, type, op, stream);
  }

  void broadcast(void* data, std::size_t count, DataType type, int root, Stream stream) override {
    const Span span(tracer_, {"broadcast", count * bytes_of(type), stream});
    inner_->broadcast(data, count, type, root, stream);
  }

  void send(const void* data, std::size_t count, DataType type, int peer, Stream stream) override {
    const Span span(tracer_, {"send", count * bytes_of(type), stream});
    inner_->send(data, count, type, peer, stream);
  }

  void recv(void* data, std::size_t count, DataType type, int peer, Stream stream) override {
    const Span span(tracer_, {"recv", count * bytes_of(type), stream});
    inner_->recv(data, count, type, peer, stream);
  }

  // A message under way belongs to no span: it moves within other calls.
  std::unique_ptr<Request> isend(const void* data, std::size_t count, DataType type, int peer,
                                 Stream stream) override {
    return inner_->isend(data, count, type, peer, stream);
  }
  std::unique_ptr<Request> irecv(void* data, std::size_t count, DataType type, int peer,
                                 Stream stream) override {
    return inner_->irecv(data, count, type, peer, stream);
  }

  void barrier(Stream stream) override {
    const Span span(tracer_, {"barrier", 0, stream});
    inner_->barrier(stream);
  }

  void wait(Stream stream) override { inner_->wait(stream); }

  void all_gather_on_host(const void* send, void* recv, std::size_t bytes, Stream stream) override {
    const Span span(tracer_, {"all_gather", bytes, stream});
    inner_->all_gather_on_host(send, recv, bytes, stream);
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void replayed(Stream stream) override { inner_->replayed(stream); }
  void wait_begins(Stream stream) override { inner_->wait_begins(stream); }
  void wait_ends(Stream stream) override { inner_->wait_ends(stream); }
  std::chrono::nanoseconds waited() override { return inner_->waited(); }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }
  void abort_unless_told(const std::string& reason) noexcept override {
    inner_->abort_unless_told(reason);
  }
  std::optional<std::string> aborted() const override { return inner_->aborted(); }

 private:
  std::unique_ptr<Communicator> inner_;
  CollectiveTracer& tracer_;
};

}  // namespace

std::unique_ptr<Communicator> trace(std::unique_ptr<Communicator> communicator,
                                    CollectiveTracer& tracer) {
  return std::make_unique<TracingCommunicator>(std::move(communicator), tracer);
}

}  // namespace ddprun::worker
