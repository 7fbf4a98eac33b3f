// gRPC as a subject of `muster bench session`: tasks that add one to each float that they get.
//
//   peer_session_grpc DIR TASK TASKS BYTES
//
// Task 0 is the client, and a server too. With 0 bytes a step is an empty call to each task, all at once;
// otherwise one call to task 1. Servers are reached by Unix sockets in DIR, the fastest that gRPC has inside
// a host.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "bench/peers/grpc_bytes.h"
#include "bench/peers/timed_harness.h"

namespace muster::detail::bench {
namespace {

constexpr const char* kAddOne = "/muster.bench.Task/AddOne";
constexpr size_t kPage = 4096 / sizeof(float);

struct Task {
  std::string directory;
  int task = 0;
  int tasks = 1;
  size_t bytes = 0;
};

std::string address_of(const Task& task, int which) {
  return "unix:" + task.directory + "/task." + std::to_string(which);
}

class AddingTask : public grpc::Service {
 public:
  explicit AddingTask(const std::string& address) {
    AddMethod(unary_method(kAddOne, [this](const ByteBuffer& message) { return add_one(message); }));
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    check(server_ != nullptr, "listening");
  }

  ~AddingTask() override { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  // In one pass: what was just copied is in the cache when one is added. Pieces may end within a float. There
  // is one call at a time, so that the memory of the last answer can be that of the next.
  ByteBuffer add_one(const ByteBuffer& message) {
    if (message.Length() == 0) return empty_message();
    results_.resize(message.Length() / sizeof(float));
    size_t copied = 0;
    size_t done = 0;
    each_piece(message, [&](std::span<const std::byte> piece) {
      std::memcpy(reinterpret_cast<std::byte*>(results_.data()) + copied, piece.data(), piece.size());
      copied += piece.size();
      const size_t whole = copied / sizeof(float);
      for (float& each : std::span(results_).subspan(done, whole - done)) each += 1;
      done = whole;
    });
    return message_of(results_);
  }

  std::vector<float> results_;
  std::unique_ptr<grpc::Server> server_;
};

class EmptyCalls : public TimedWork {
 public:
  explicit EmptyCalls(const Task& task) {
    for (int i = 0; i < task.tasks; ++i) calls_.add(connect(address_of(task, i)));
  }

  void run() override {
    for (const auto& answer : calls_.call(kAddOne, [](size_t) { return empty_message(); }))
      is_empty_ &= answer.Length() == 0;
  }

  bool verify() override { return is_empty_; }

 private:
  UnaryCalls calls_;
  bool is_empty_ = true;
};

class Transfer : public TimedWork {
 public:
  explicit Transfer(const Task& task)
      : values_(task.bytes / sizeof(float)), returned_(task.bytes / sizeof(float)) {
    calls_.add(connect(address_of(task, 1)));
  }

  void prepare() override {
    for (float& each : values_) each += 1;
    ++changes_;
  }

  void run() override {
    const auto answers = calls_.call(kAddOne, [&](size_t) { return message_of(values_); });
    check(take(answers.front(), returned_).empty(), "getting back as much as was sent");
    sum_ = 0;
    for (size_t i = 0; i < returned_.size(); i += kPage) sum_ += returned_[i];
  }

  bool verify() override {
    const auto pages = static_cast<double>((returned_.size() + kPage - 1) / kPage);
    return sum_ == pages * static_cast<double>(changes_ + 1);
  }

 private:
  UnaryCalls calls_;
  std::vector<float> values_;
  std::vector<float> returned_;
  int64_t changes_ = 0;
  double sum_ = 0;
};

void run(const Task& task) {
  const AddingTask server(address_of(task, task.task));
  if (task.task != 0) return serve_idle(task.directory, task.task);
  std::unique_ptr<TimedWork> work;
  if (task.bytes == 0)
    work = std::make_unique<EmptyCalls>(task);
  else
    work = std::make_unique<Transfer>(task);
  serve_timed(*work, task.directory, 0);
}

}  // namespace
}  // namespace muster::detail::bench

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw std::invalid_argument("four arguments say what to do");
    muster::detail::bench::run({.directory = argv[1],
                                .task = std::stoi(argv[2]),
                                .tasks = std::stoi(argv[3]),
                                .bytes = std::stoul(argv[4])});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer_session_grpc DIR TASK TASKS BYTES: %s\n", error.what());
    return 1;
  }
}
