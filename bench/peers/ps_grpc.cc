// gRPC as a subject of `muster bench ps`: a service that keeps the bytes that were pushed last, and gives
// them to whoever pulls.
//
//   peer_ps_grpc unary|stream unix|tcp DIR RANK WORKERS SERVERS VARIABLES BYTES
//
// unary: a call for the push, then one for the pull; all variables of a server are one message.
// stream: one stream to each server for ever; a push is messages of a piece each, and an empty one asks for
// the parameters, so that a step is one round trip.
//
// Messages are byte buffers on the gradients' own memory: no protobuf, no copy on the way out, and none on
// the server, which updates nothing. Servers are reached by sockets in DIR, or at ports that they write
// there.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/sync_stream.h>

#include "bench/peers/grpc_bytes.h"
#include "bench/peers/ps_harness.h"

namespace muster::detail::bench {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPush = "/muster.bench.Parameters/Push";
constexpr const char* kPull = "/muster.bench.Parameters/Pull";
constexpr const char* kStream = "/muster.bench.Parameters/Stream";
constexpr size_t kPiece = 1 << 20;  // bytes of a message in a stream; 256 KiB and 4 MiB: not clearly faster
constexpr auto kTimeForPort = 30s;

/// What all workers of a server see.
class Store {
 public:
  void set(Messages messages) {
    const std::scoped_lock lock(mutex_);
    messages_.swap(messages);
  }
  Messages get() const {
    const std::scoped_lock lock(mutex_);
    return messages_;  // references to the same memory
  }

 private:
  mutable std::mutex mutex_;
  Messages messages_ = {ByteBuffer()};
};

/// As the generator would write it, for messages that are plain bytes.
class Parameters : public grpc::Service {
 public:
  Parameters() {
    AddMethod(unary_method(kPush, [this](const ByteBuffer& request) {
      store_.set({request});
      return empty_message();
    }));
    AddMethod(unary_method(kPull, [this](const ByteBuffer&) { return store_.get().front(); }));
    using grpc::internal::RpcMethod;
    using grpc::internal::RpcServiceMethod;
    AddMethod(new RpcServiceMethod(
        kStream, RpcMethod::BIDI_STREAMING,
        new grpc::internal::BidiStreamingHandler<Parameters, ByteBuffer, ByteBuffer>(
            [](Parameters* self, grpc::ServerContext*,
               grpc::ServerReaderWriter<ByteBuffer, ByteBuffer>* stream) { return self->serve(*stream); },
            this)));
  }

 private:
  grpc::Status serve(grpc::ServerReaderWriter<ByteBuffer, ByteBuffer>& stream) {
    Messages pushed;
    for (ByteBuffer message; stream.Read(&message); message.Clear()) {
      if (message.Length() > 0) {
        pushed.push_back(message);
        continue;
      }
      if (!pushed.empty()) store_.set(std::exchange(pushed, {}));
      for (const auto& each : store_.get()) stream.Write(each);
    }
    return grpc::Status::OK;
  }

  Store store_;
};

std::string address_of(const PsTask& task, int server, bool tcp) {
  const std::string name = task.directory + "/server." + std::to_string(server);
  if (!tcp) return "unix:" + name;
  const auto limit = std::chrono::steady_clock::now() + kTimeForPort;
  while (!std::filesystem::exists(name)) {
    check(std::chrono::steady_clock::now() < limit, "waiting for a server's port");
    std::this_thread::sleep_for(5ms);
  }
  std::string port;
  std::ifstream(name) >> port;
  return "127.0.0.1:" + port;
}

void serve_parameters(const PsTask& task, bool tcp) {
  const std::string name = task.directory + "/server." + std::to_string(task.server());
  Parameters service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(tcp ? "127.0.0.1:0" : "unix:" + name, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  check(server != nullptr, "listening");
  if (tcp) {
    std::ofstream(name + ".new") << port;
    std::filesystem::rename(name + ".new", name);
  }
  serve_server(task);
  server->Shutdown(std::chrono::system_clock::now());
}

/// A worker's buffers, and its way to each server.
class GrpcWorker : public PsWorker {
 public:
  GrpcWorker(const PsTask& task, bool tcp)
      : task_(task), gradients_(task.count()), parameters_(task.count()) {
    for (int i = 0; i < task.servers; ++i) {
      servers_.push_back({.channel = connect(address_of(task, i, tcp)),
                          .gradients = part_of(gradients_, i, task.servers),
                          .parameters = part_of(parameters_, i, task.servers)});
    }
  }

  std::span<float> gradients() override { return gradients_; }

  // Pushes other numbers than before, once: each server has them, or what another worker has pushed since.
  bool verify(int64_t) override {
    flip();
    step();
    bool right = true;
    for (const auto& server : servers_) right &= is_of_a_worker(server);
    flip();
    return right;
  }

 protected:
  struct Server {
    std::shared_ptr<grpc::Channel> channel;
    std::span<float> gradients;
    std::span<float> parameters;
  };

  const PsTask task_;
  std::vector<Server> servers_;

 private:
  void flip() {
    for (float& each : gradients_) each = -each;
  }

  bool is_of_a_worker(const Server& server) const {
    std::vector<float> expected(task_.count());
    for (int worker = 0; worker < task_.workers; ++worker) {
      write_gradients(expected, worker);
      const auto same = part_of(expected, static_cast<int>(&server - servers_.data()), task_.servers);
      const auto equal = [&](float sign) {
        return std::equal(same.begin(), same.end(), server.parameters.begin(),
                          [&](float a, float b) { return sign * a == b; });
      };
      if (equal(-1) || (worker != task_.rank && equal(1))) return true;
    }
    return false;
  }

  std::vector<float> gradients_;
  std::vector<float> parameters_;
};

class UnaryWorker : public GrpcWorker {
 public:
  UnaryWorker(const PsTask& task, bool tcp) : GrpcWorker(task, tcp) {
    for (const auto& server : servers_) calls_.add(server.channel);
  }

  void step() override {
    calls_.call(kPush, [&](size_t i) { return message_of(servers_[i].gradients); });
    const auto pulled = calls_.call(kPull, [](size_t) { return empty_message(); });
    for (size_t i = 0; i < servers_.size(); ++i) take(pulled[i], servers_[i].parameters);
  }

 private:
  UnaryCalls calls_;
};

class StreamWorker : public GrpcWorker {
 public:
  StreamWorker(const PsTask& task, bool tcp) : GrpcWorker(task, tcp) {
    for (auto& server : servers_) {
      contexts_.push_back(std::make_unique<grpc::ClientContext>());
      const grpc::internal::RpcMethod method(kStream, grpc::internal::RpcMethod::BIDI_STREAMING);
      streams_.emplace_back(grpc::internal::ClientReaderWriterFactory<ByteBuffer, ByteBuffer>::Create(
          server.channel.get(), method, contexts_.back().get()));
    }
  }

  ~StreamWorker() override {
    for (auto& stream : streams_) {
      stream->WritesDone();
      stream->Finish();
    }
  }

  void step() override {
    for (size_t i = 0; i < streams_.size(); ++i) {
      for (auto rest = servers_[i].gradients; !rest.empty();) {
        const auto piece = rest.first(std::min(rest.size(), kPiece / sizeof(float)));
        check(streams_[i]->Write(message_of(piece)), "a push");
        rest = rest.subspan(piece.size());
      }
      check(streams_[i]->Write(empty_message()), "asking for the parameters");
    }
    for (size_t i = 0; i < streams_.size(); ++i) {
      for (auto rest = servers_[i].parameters; !rest.empty();) {
        ByteBuffer message;
        check(streams_[i]->Read(&message), "a pull");
        rest = take(message, rest);
      }
    }
  }

 private:
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<ByteBuffer, ByteBuffer>>> streams_;
};

void run(bool stream, bool tcp, const PsTask& task) {
  if (task.is_server()) return serve_parameters(task, tcp);
  std::unique_ptr<PsWorker> worker;
  if (stream)
    worker = std::make_unique<StreamWorker>(task, tcp);
  else
    worker = std::make_unique<UnaryWorker>(task, tcp);
  serve_worker(*worker, task);
}

}  // namespace
}  // namespace muster::detail::bench

int main(int argc, char** argv) {
  try {
    if (argc < 3) throw std::invalid_argument("too few arguments");
    muster::detail::bench::run(argv[1] == std::string("stream"), argv[2] == std::string("tcp"),
                               muster::detail::bench::parse_ps_task({argv + 3, argv + argc}));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer_ps_grpc unary|stream unix|tcp DIR RANK WORKERS SERVERS VARIABLES BYTES: %s\n",
                 error.what());
    return 1;
  }
}
