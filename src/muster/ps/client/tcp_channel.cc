#include <cstring>
#include <deque>
#include <thread>

#include "muster/base/convert.h"
#include "muster/base/error.h"
#include "muster/base/mutex.h"
#include "muster/base/start_thread.h"
#include "muster/net/blocking_link.h"
#include "muster/ps/client/channel.h"
#include "muster/ps/stopped.h"

namespace muster::detail {
namespace {

constexpr size_t kMostAtOnce = 256;  // what one call of the system sends
constexpr size_t kManyBytes = size_t{1} << 20;

// What goes out, goes out by a thread of its own, so that gradients travel while backward goes on. Who waits
// for an answer helps with what has not gone yet.
class TcpChannel : public Channel {
 public:
  TcpChannel(const ChannelOptions& options, Deadline deadline) : options_(options), layout_(options_.layout) {
    static std::atomic<uint32_t> links{0};
    const Hello hello = {.spec = options_.spec.fingerprint(),
                         .worker = options_.worker,
                         .incarnation = options_.incarnation,
                         .sockets = static_cast<uint32_t>(options_.sockets),
                         .link = ++links};
    std::vector<Connection> connections;
    connections.push_back(options_.endpoint->connect(
        options_.server.address, worker_channel_name(options_.job_id, options_.model_id), deadline));
    connections.front().send(&hello, sizeof(hello), deadline);
    welcome_ = receive_welcome(connections.front(), deadline);
    for (uint32_t i = 1; i < hello.sockets; ++i)
      connections.push_back(options_.endpoint->connect(
          options_.server.address, socket_channel_name(options_.job_id, options_.model_id, hello, i),
          deadline));
    link_ = std::make_unique<BlockingLink>(std::move(connections), options_.encrypted);
    sender_ = start_thread([this] { send_all(); });
  }

  ~TcpChannel() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    sender_.join();
  }

  const Welcome& welcome() const override { return welcome_; }

  void deliver(size_t slice, uint64_t sequence, const void* data) override {
    if (data == nullptr) return;
    const size_t bytes = wire_bytes(slice);
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
    flush();
    for (;;) {
      const auto frame = link_->receive_one<Frame>([this] { check(); });
      if (frame.kind == Frame::Kind::kParameters || frame.kind == Frame::Kind::kWhole) {
        skip(frame.bytes);  // that nobody pulled
        continue;
      }
      if (frame.kind != Frame::Kind::kReply || frame.bytes != sizeof(Reply))
        raise<DataLoss>("parameter server {} sent something else than a reply", options_.index);
      const auto reply = link_->receive_one<Reply>([this] { check(); });
      if (frame.number == number) return reply;
    }
  }

  // What has gone out is the server's.
  void wait_consumed(uint64_t /*sequence*/) override { flush(); }

  int64_t pull(int64_t at_least, std::span<void* const> slices, bool asked) override {
    if (!asked)
      add({.frame = {.kind = Frame::Kind::kPull, .number = static_cast<uint64_t>(at_least), .bytes = 0}});
    flush();
    for (;;) {
      const auto head = link_->receive_one<Frame>([this] { check(); });
      if (head.kind == Frame::Kind::kReply) {
        skip(head.bytes);  // it came again over a new link
        continue;
      }
      size_t bytes = 0;
      for (size_t i = 0; i < layout_.size(); ++i) bytes += wire_bytes(i);
      if (head.kind != Frame::Kind::kParameters || head.bytes != bytes)
        raise<DataLoss>("parameter server {} sent something else than parameters", options_.index);
      receive_slices(slices);
      const auto tail = link_->receive_one<Frame>([this] { check(); });
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
    const void* data = nullptr;
    Request request;
  };

  void skip(size_t bytes) {
    incoming_.resize(std::max(incoming_.size(), bytes));
    const iovec part = {incoming_.data(), bytes};
    link_->receive({&part, 1}, [this] { check(); });
  }

  DType wire_of(size_t slice) const { return options_.spec.wire_of(layout_[slice].dtype); }
  size_t wire_bytes(size_t slice) const { return layout_.slices()[slice].count * size_of(wire_of(slice)); }

  // Those that travel as they are, as many as come one behind the other, go where they belong.
  void receive_slices(std::span<void* const> slices) {
    std::vector<iovec> parts;
    const auto receive_parts = [&] {
      link_->receive(parts, [this] { check(); });
      parts.clear();
    };
    for (size_t i = 0; i < slices.size(); ++i) {
      const size_t bytes = wire_bytes(i);
      if (wire_of(i) == layout_[i].dtype) {
        parts.push_back({slices[i], bytes});
        continue;
      }
      incoming_.resize(std::max(incoming_.size(), bytes));
      parts.push_back({incoming_.data(), bytes});
      receive_parts();
      convert(wire_of(i), incoming_.data(), layout_[i].dtype, slices[i], layout_.slices()[i].count);
    }
    if (!parts.empty()) receive_parts();
  }

  void check() {
    options_.check();
    const MutexLock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

  void add(const Item& item) {
    {
      const MutexLock lock(mutex_);
      if (error_) std::rethrow_exception(error_);
      queue_.push_back(item);
    }
    changed_.notify_all();
  }

  void flush() {
    MutexLock lock(mutex_);
    for (;;) {
      if (error_) std::rethrow_exception(error_);
      if (queue_.empty() && !busy_) return;
      if (!busy_) {
        send_some(options_.check);
      } else {
        changed_.wait_for(lock, std::chrono::milliseconds(50));
        options_.check();
      }
    }
  }

  void send_all() {
    MutexLock lock(mutex_);
    for (;;) {
      while (!stopping_ && !error_ && (queue_.empty() || busy_)) changed_.wait(lock);
      if (stopping_ || error_) return;
      send_some([] {});
    }
  }

  // The first of the queue, many small ones at once. `check` is that of the thread that sends.
  void send_some(const BlockingLink::Check& check) MUSTER_REQUIRES(mutex_) {
    size_t bytes = 0;
    batch_.clear();
    while (!queue_.empty() && batch_.size() < kMostAtOnce && bytes < kManyBytes) {
      bytes += queue_.front().frame.bytes;
      batch_.push_back(queue_.front());
      queue_.pop_front();
    }
    busy_ = true;
    mutex_.unlock();
    std::exception_ptr error;
    try {
      send_batch(bytes, check);
    } catch (...) {
      error = std::current_exception();
    }
    mutex_.lock();
    busy_ = false;
    error_ = error;
    changed_.notify_all();
  }

  void send_batch(size_t bytes, const BlockingLink::Check& check) {
    size_t converted = 0;
    std::vector<iovec> parts;
    for (auto& item : batch_) {
      const size_t slice = item.frame.index;
      void* payload = &item.request;
      if (item.data != nullptr && wire_of(slice) != layout_[slice].dtype) {
        outgoing_.resize(std::max(outgoing_.size(), bytes));
        payload = outgoing_.data() + converted;
        convert(layout_[slice].dtype, item.data, wire_of(slice), payload, layout_.slices()[slice].count);
        converted += item.frame.bytes;
      } else if (item.data != nullptr) {
        payload = const_cast<void*>(item.data);
      }
      parts.push_back({&item.frame, sizeof(Frame)});
      parts.push_back({payload, item.frame.bytes});
    }
    link_->send(parts, [&] {
      check();
      const MutexLock lock(mutex_);
      if (stopping_) throw Stopped{};
    });
  }

  const ChannelOptions options_;
  const FlatLayout& layout_;
  Welcome welcome_;
  std::unique_ptr<BlockingLink> link_;
  std::vector<std::byte> incoming_;
  std::vector<Item> batch_;          // of who sends, as is:
  std::vector<std::byte> outgoing_;  // gradients in the wire dtype

  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<Item> queue_ MUSTER_GUARDED_BY(mutex_);
  bool busy_ MUSTER_GUARDED_BY(mutex_) = false;  // somebody sends what is not in the queue any more
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ MUSTER_GUARDED_BY(mutex_);  // of whoever sent
  std::thread sender_;
};

}  // namespace

std::unique_ptr<Channel> open_tcp_channel(const ChannelOptions& options, Deadline deadline) {
  return std::make_unique<TcpChannel>(options, deadline);
}

}  // namespace muster::detail
