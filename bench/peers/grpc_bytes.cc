#include "bench/peers/grpc_bytes.h"

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace muster::detail::bench {
namespace {

constexpr std::chrono::seconds kTimeToConnect(30);

}  // namespace

void check(bool well, const char* what) {
  if (!well) throw std::runtime_error(std::string("gRPC: ") + what + " failed");
}

void check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error("gRPC: " + status.error_message());
}

ByteBuffer empty_message() {
  const grpc::Slice slice;
  return {&slice, 1};
}

ByteBuffer message_of(std::span<const float> values) {
  const grpc::Slice slice(values.data(), values.size_bytes(), grpc::Slice::STATIC_SLICE);
  return {&slice, 1};
}

void each_piece(const ByteBuffer& message, const std::function<void(std::span<const std::byte>)>& visit) {
  std::vector<grpc::Slice> slices;
  check(message.Dump(&slices).ok(), "reading a message");
  for (const auto& slice : slices) visit({reinterpret_cast<const std::byte*>(slice.begin()), slice.size()});
}

std::span<float> take(const ByteBuffer& message, std::span<float> values) {
  check(message.Length() <= values.size_bytes(), "a message of as many bytes as there is room for");
  auto* to = reinterpret_cast<std::byte*>(values.data());
  each_piece(message, [&](std::span<const std::byte> piece) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  });
  return values.subspan(message.Length() / sizeof(float));
}

grpc::internal::RpcServiceMethod* unary_method(const char* name,
                                               std::function<ByteBuffer(const ByteBuffer&)> answer) {
  using grpc::internal::RpcMethod;
  using Handler = grpc::internal::RpcMethodHandler<grpc::Service, ByteBuffer, ByteBuffer>;
  return new grpc::internal::RpcServiceMethod(
      name, RpcMethod::NORMAL_RPC,
      new Handler(
          [answer = std::move(answer)](grpc::Service*, grpc::ServerContext*, const ByteBuffer* request,
                                       ByteBuffer* response) {
            *response = answer(*request);
            return grpc::Status::OK;
          },
          nullptr));
}

std::shared_ptr<grpc::Channel> connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  check(channel->WaitForConnected(std::chrono::system_clock::now() + kTimeToConnect), "connecting");
  return channel;
}

void UnaryCalls::add(const std::shared_ptr<grpc::Channel>& server) {
  stubs_.emplace_back(server);
}

Messages UnaryCalls::call(const std::string& method,
                          const std::function<ByteBuffer(size_t server)>& request) {
  std::vector<Call> calls(stubs_.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].reader = stubs_[i].PrepareUnaryCall(&calls[i].context, method, request(i), &queue_);
    calls[i].reader->StartCall();
    calls[i].reader->Finish(&calls[i].response, &calls[i].status, nullptr);
  }
  void* tag = nullptr;
  bool well = false;
  for (size_t i = 0; i < calls.size(); ++i) check(queue_.Next(&tag, &well) && well, "a call");
  Messages responses;
  for (auto& each : calls) {
    check(each.status);
    responses.push_back(each.response);
  }
  return responses;
}

}  // namespace muster::detail::bench
