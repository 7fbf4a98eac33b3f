#pragma once

// What the peers on gRPC have in common: messages that are plain bytes on memory that is there anyway. No
// protobuf, no copy on the way out. Functions throw std::runtime_error for what fails.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/method_handler.h>

namespace muster::detail::bench {

using grpc::ByteBuffer;
using Messages = std::vector<ByteBuffer>;

void check(bool well, const char* what);
void check(const grpc::Status& status);

ByteBuffer empty_message();

/// A message that refers to these values, which must stay as they are until it was answered.
ByteBuffer message_of(std::span<const float> values);

/// Copies a message to the beginning of `values`, and gives what is behind it.
std::span<float> take(const ByteBuffer& message, std::span<float> values);

/// Calls `visit` with each piece of memory that a message consists of, in their order.
void each_piece(const ByteBuffer& message, const std::function<void(std::span<const std::byte>)>& visit);

/// For grpc::Service::AddMethod(), as the generator would write it; `answer` is called by gRPC's threads.
grpc::internal::RpcServiceMethod* unary_method(const char* name,
                                               std::function<ByteBuffer(const ByteBuffer&)> answer);

/// Waits until somebody is there. Messages may be of any size.
std::shared_ptr<grpc::Channel> connect(const std::string& address);

/// Unary calls to several servers at the same time. One thread.
class UnaryCalls {
 public:
  void add(const std::shared_ptr<grpc::Channel>& server);

  /// Calls all, with a request for each, and gives what they answer.
  Messages call(const std::string& method, const std::function<ByteBuffer(size_t server)>& request);

 private:
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<ByteBuffer>> reader;
    ByteBuffer response;
    grpc::Status status;
  };

  grpc::CompletionQueue queue_;
  std::vector<grpc::GenericStub> stubs_;
};

}  // namespace muster::detail::bench
