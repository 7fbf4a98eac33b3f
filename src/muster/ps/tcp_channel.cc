#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "muster/base/convert.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/ps/channel.h"

namespace muster {
namespace {

struct Stopped {};

// What goes out, goes out by a thread of its own, so that gradients travel while backward goes on.
class TcpChannel : public Channel {
 public:
  TcpChannel(const ChannelOptions& options, Deadline deadline)
      : options_(options), slices_(options_.placement.slices(options_.index)) {
    static std::atomic<uint32_t> links{0};
    const Hello hello = {.plan = options_.plan.fingerprint(),
                         .worker = options_.worker,
                         .incarnation = options_.incarnation,
                         .sockets = static_cast<uint32_t>(options_.sockets),
                         .link = ++links};
    std::vector<Connection> connections;
    connections.push_back(options_.endpoint->connect(
        options_.server.address, worker_purpose(options_.job_id, options_.plan_id), deadline));
    connections.front().send(&hello, sizeof(hello), deadline);
    welcome_ = receive_welcome(connections.front(), deadline);
    for (uint32_t i = 1; i < hello.sockets; ++i)
      connections.push_back(options_.endpoint->connect(
          options_.server.address, more_purpose(options_.job_id, options_.plan_id, hello, i), deadline));
    stream_ = std::make_unique<Stream>(std::move(connections), options_.encrypted);
    sender_ = std::thread([this, task = log_task()] {
      const ScopedLogTask scope(task);
      send_all();
    });
  }

  ~TcpChannel() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    sender_.join();
  }

  const Welcome& welcome() const override { return welcome_; }

  void deliver(size_t slice, uint64_t sequence, const float* data) override {
    if (data == nullptr) return;
    const size_t bytes = slices_[slice].count * size_of(options_.plan.wire);
    add({.frame = {.kind = Frame::Kind::kSlice,
                   .index = static_cast<uint32_t>(slice),
                   .number = sequence,
                   .bytes = bytes},
         .data = data});
  }

  void post(uint64_t number, const Request& request) override {
    add({.frame = {.kind = Frame::Kind::kRequest, .number = number, .bytes = sizeof(Request)},
         .request = request});
  }

  Reply wait_reply(uint64_t number) override {
    for (;;) {
      const auto frame = stream_->receive_one<Frame>([this] { check(); });
      if (frame.kind == Frame::Kind::kParameters || frame.kind == Frame::Kind::kWhole) {
        skip(frame.bytes);  // that nobody pulled
        continue;
      }
      if (frame.kind != Frame::Kind::kReply || frame.bytes != sizeof(Reply))
        raise<DataLoss>("parameter server {} sent something else than a reply", options_.index);
      const auto reply = stream_->receive_one<Reply>([this] { check(); });
      if (frame.number == number) return reply;
    }
  }

  // What has gone out is the server's.
  void wait_consumed(uint64_t /*sequence*/) override {
    std::unique_lock lock(mutex_);
    while (!queue_.empty() || busy_) {
      changed_.wait_for(lock, std::chrono::milliseconds(50));
      if (error_) std::rethrow_exception(error_);
      options_.check();
    }
  }

  int64_t pull(int64_t at_least, std::span<float* const> slices, bool asked) override {
    if (!asked)
      add({.frame = {.kind = Frame::Kind::kPull, .number = static_cast<uint64_t>(at_least), .bytes = 0}});
    for (;;) {
      const auto head = stream_->receive_one<Frame>([this] { check(); });
      if (head.kind == Frame::Kind::kReply) {
        skip(head.bytes);  // it came again over a new link
        continue;
      }
      size_t bytes = 0;
      for (const auto& slice : slices_) bytes += slice.count * size_of(options_.plan.wire);
      if (head.kind != Frame::Kind::kParameters || head.bytes != bytes)
        raise<DataLoss>("parameter server {} sent something else than parameters", options_.index);
      for (size_t i = 0; i < slices_.size(); ++i) receive_slice(slices[i], slices_[i].count);
      const auto tail = stream_->receive_one<Frame>([this] { check(); });
      const auto version = static_cast<int64_t>(tail.number);
      if (tail.kind == Frame::Kind::kWhole && tail.index == 1 && version >= at_least) return version;
    }
  }

  void wait_version(int64_t /*at_least*/) override {
    throw InvalidArgument("the parameters of another host can't be read in place");
  }

 private:
  struct Item {
    Frame frame;
    const float* data = nullptr;
    Request request;
  };

  void skip(size_t bytes) {
    incoming_.resize(std::max(incoming_.size(), bytes));
    const iovec part = {incoming_.data(), bytes};
    stream_->receive({&part, 1}, [this] { check(); });
  }

  void receive_slice(float* destination, size_t count) {
    const bool is_narrow = options_.plan.wire != DType::kFloat32;
    const size_t bytes = count * size_of(options_.plan.wire);
    if (is_narrow) incoming_.resize(std::max(incoming_.size(), bytes));
    const iovec part = {is_narrow ? static_cast<void*>(incoming_.data()) : destination, bytes};
    stream_->receive({&part, 1}, [this] { check(); });
    if (is_narrow) convert(options_.plan.wire, incoming_.data(), DType::kFloat32, destination, count);
  }

  void check() {
    options_.check();
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

  void add(Item item) {
    {
      const std::lock_guard lock(mutex_);
      if (error_) std::rethrow_exception(error_);
      queue_.push_back(std::move(item));
    }
    changed_.notify_all();
  }

  void send_all() {
    std::unique_lock lock(mutex_);
    try {
      for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (stopping_) return;
        const Item item = queue_.front();
        queue_.pop_front();
        busy_ = true;
        lock.unlock();
        send(item);
        lock.lock();
        busy_ = false;
        changed_.notify_all();
      }
    } catch (const Stopped&) {
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  void send(const Item& item) {
    const void* payload = &item.request;
    if (item.data != nullptr) {
      payload = item.data;
      if (options_.plan.wire != DType::kFloat32) {
        outgoing_.resize(std::max<size_t>(outgoing_.size(), item.frame.bytes));
        convert(DType::kFloat32, item.data, options_.plan.wire, outgoing_.data(),
                slices_[item.frame.index].count);
        payload = outgoing_.data();
      }
    }
    const std::array<iovec, 2> parts = {iovec{const_cast<Frame*>(&item.frame), sizeof(Frame)},
                                        iovec{const_cast<void*>(payload), item.frame.bytes}};
    stream_->send(parts, [this] {
      const std::lock_guard lock(mutex_);
      if (stopping_) throw Stopped{};
    });
  }

  const ChannelOptions options_;
  const std::vector<Slice>& slices_;
  Welcome welcome_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::byte> incoming_;
  std::vector<std::byte> outgoing_;  // of the sender

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;  // protected by mutex_, as all that follows
  bool busy_ = false;       // the sender has something that is not in the queue any more
  bool stopping_ = false;
  std::exception_ptr error_;  // of the sender
  std::thread sender_;
};

}  // namespace

std::unique_ptr<Channel> open_tcp_channel(const ChannelOptions& options, Deadline deadline) {
  return std::make_unique<TcpChannel>(options, deadline);
}

}  // namespace muster
