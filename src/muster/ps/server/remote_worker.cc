#include "muster/ps/server/remote_worker.h"

#include <algorithm>
#include <cstdlib>

#include "muster/base/convert.h"
#include "muster/base/copy.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/start_thread.h"
#include "muster/ps/stopped.h"

namespace muster::detail {
namespace {

std::shared_ptr<SessionSlot> make_slot(size_t slices) {
  void* memory = std::aligned_alloc(alignof(SessionSlot), (SessionSlot::bytes(slices) + 63) / 64 * 64);
  MUSTER_CHECK(memory != nullptr);
  return {SessionSlot::make(memory), [](SessionSlot* slot) { std::free(slot); }};
}

constexpr size_t kFront = 64;  // nothing is at offset 0

// Parameters on their way out, while they are read. The link takes them from where they are; what it does not
// take at once is copied, so that nobody who wants to change them waits for a slow network.
class Outgoing {
 public:
  /// Copies go to `copies`, which outlives this.
  Outgoing(const RemoteWorker::Options& options, BlockingLink& link, std::vector<std::byte>& copies)
      : options_(options), link_(link), copies_(copies) {
    const FlatLayout& layout = options.view.layout();
    for (size_t i = 0; i < layout.size(); ++i)
      total_ += layout.slices()[i].count * size_of(options.spec.wire_of(layout[i].dtype));
    copies_.resize(total_);
  }

  size_t total() const { return total_; }

  void add(DType dtype, const std::byte* data, size_t count) {
    const DType wire = options_.spec.wire_of(dtype);
    const size_t bytes = count * size_of(wire);
    void* from = const_cast<std::byte*>(data);
    if (wire != dtype) {
      from = copies_.data() + added_;
      convert(dtype, data, wire, from, count);
    }
    parts_.push_back({from, bytes});
    added_ += bytes;
    untried_ += bytes;
    if (untried_ >= kEnough || parts_.size() == kMostParts || added_ == total_) send_some();
  }

  /// What has been added; what does not go is kept.
  void send_some() {
    sent_ += link_.send_some(parts_, /*may_yield=*/!is_behind_);
    untried_ = 0;
    for (size_t end = added_; end > sent_; parts_.pop_back()) {
      const size_t begin = end - parts_.back().iov_len;
      const size_t kept = std::max(begin, sent_);
      const auto* from = static_cast<const std::byte*>(parts_.back().iov_base) + (kept - begin);
      std::byte* to = copies_.data() + kept;
      if (from != to) copy_bytes(to, from, end - kept);
      end = begin;
    }
    parts_.clear();
    is_behind_ = sent_ < added_;
    if (is_behind_) parts_.push_back({copies_.data() + sent_, added_ - sent_});
  }

  void finish(const Frame& tail, const BlockingLink::Check& check) {
    parts_.push_back({const_cast<Frame*>(&tail), sizeof(tail)});
    link_.send(parts_, check);
  }

 private:
  static constexpr size_t kEnough = size_t{512} * 1024;  // bytes that are worth a call of the system
  static constexpr size_t kMostParts = 256;

  const RemoteWorker::Options& options_;
  BlockingLink& link_;
  std::vector<std::byte>& copies_;
  size_t total_ = 0;
  size_t added_ = 0;
  size_t sent_ = 0;
  size_t untried_ = 0;        // of what was added
  bool is_behind_ = false;    // the link did not take all that it was offered
  std::vector<iovec> parts_;  // what was added and has not gone
};

}  // namespace

RemoteWorker::RemoteWorker(Options options)
    : options_(std::move(options)),
      layout_(options_.view.layout()),
      slot_(make_slot(layout_.size())),
      buffers_(kFront + 2 * layout_.bytes()) {
  for (auto& here : here_) here.assign(layout_.size(), false);
}

RemoteWorker::~RemoteWorker() {
  close();
}

void RemoteWorker::stop() {
  stopping_.exchange(true);
  wake(slot_->doorbell);
  if (receiver_.joinable()) receiver_.join();
  if (sender_.joinable()) sender_.join();
  stopping_ = false;
}

void RemoteWorker::drop_link() {
  stop();
  link_.reset();
  broken();
}

void RemoteWorker::detach() {
  const MutexLock lock(link_mutex_);
  drop_link();
}

void RemoteWorker::close() {
  const MutexLock lock(link_mutex_);
  closed_ = true;
  drop_link();
}

void RemoteWorker::attach(std::unique_ptr<BlockingLink> link) {
  const MutexLock links(link_mutex_);
  if (closed_) return;
  stop();
  link_ = std::move(link);
  pull_ = -1;
  // The last reply may have been lost on its way: it goes out again if the worker still waits for it, which
  // it says by asking nothing else.
  const uint64_t answered = slot_->answered.load();
  sent_ = answered > 0 && slot_->posted.load() == answered ? answered - 1 : answered;
  {
    const MutexLock lock(mutex_);
    gone_since_.reset();
  }
  start(&RemoteWorker::receive, receiver_);
  start(&RemoteWorker::send, sender_);
}

void RemoteWorker::start(void (RemoteWorker::*body)(), std::thread& thread) {
  thread = start_thread([this, body] {
    try {
      (this->*body)();
    } catch (const Stopped&) {
      return;
    } catch (const Refused& error) {
      log_warning("{}: its link is closed", error.what());
    } catch (const std::exception& error) {
      log_debug("the link to {} has ended: {}", options_.name, error.what());
    }
    link_->end();
    broken();
  });
}

void RemoteWorker::check() const {
  if (stopping_.load() || gone_since()) throw Stopped{};
}

std::optional<Deadline::Clock::time_point> RemoteWorker::gone_since() const {
  const MutexLock lock(mutex_);
  return gone_since_;
}

void RemoteWorker::broken() {
  {
    const MutexLock lock(mutex_);
    if (!gone_since_) gone_since_ = Deadline::Clock::now();
  }
  wake(slot_->doorbell);
  wake(options_.doorbell);
}

void RemoteWorker::receive() {
  const auto checks = [this] { check(); };
  for (;;) {
    const auto frame = link_->receive_one<Frame>(checks);
    switch (frame.kind) {
      case Frame::Kind::kSlice:
        receive_slice(frame);
        break;
      case Frame::Kind::kRequest:
        receive_request(frame);
        break;
      case Frame::Kind::kPull:
        pull_.exchange(static_cast<int64_t>(frame.number));
        wake(slot_->doorbell);
        break;
      default:
        raise<Refused>("{} sent a frame that workers do not send", options_.name);
    }
  }
}

void RemoteWorker::receive_slice(const Frame& frame) {
  if (frame.index >= layout_.size())
    raise<Refused>("{} sent slice {}, and this server has {}", options_.name, frame.index, layout_.size());
  const DType dtype = layout_[frame.index].dtype;
  const DType wire = options_.spec.wire_of(dtype);
  const size_t count = layout_.slices()[frame.index].count;
  if (frame.bytes != count * size_of(wire))
    raise<Refused>("{} sent {} bytes for a slice of {} elements", options_.name, frame.bytes, count);
  const bool again = frame.number <= taken_;
  const size_t which = frame.number % 2;
  if (!again && sequences_[which] != frame.number) {
    // What was in this buffer must have been used.
    wait_until(
        slot_->doorbell, options_.spin_policy,
        [&] { return stopping_.load() || slot_->consumed.load() >= sequences_[which]; }, [this] { check(); });
    sequences_[which] = frame.number;
    here_[which].assign(layout_.size(), false);
  }
  std::byte* destination = buffers_.data() + kFront + which * layout_.bytes() + layout_.offset(frame.index);
  const bool passes = again || wire != dtype;
  if (passes) passing_.resize(std::max<size_t>(passing_.size(), frame.bytes));
  const iovec part = {passes ? static_cast<void*>(passing_.data()) : destination, frame.bytes};
  link_->receive({&part, 1}, [this] { check(); });
  if (again) return;
  if (passes) convert(wire, passing_.data(), dtype, destination, count);
  here_[which][frame.index] = true;
}

void RemoteWorker::receive_request(const Frame& frame) {
  if (frame.bytes != sizeof(Request)) raise<Refused>("{} sent a request of another size", options_.name);
  const auto request = link_->receive_one<Request>([this] { check(); });
  if (!is_request(request)) raise<Refused>("{} sent an unknown request", options_.name);
  if (frame.number <= slot_->posted.load()) return;  // we have it already
  if (frame.number != slot_->posted.load() + 1 || copied_.load() != slot_->posted.load())
    raise<Refused>("{} sent a request out of turn", options_.name);
  const size_t which = request.push.sequence % 2;
  const bool has_data = sequences_[which] == request.push.sequence && request.push.sequence > taken_;
  for (size_t i = 0; i < layout_.size(); ++i) {
    const size_t offset = kFront + which * layout_.bytes() + layout_.offset(i);
    slot_->offsets()[i] = has_data && here_[which][i] ? offset : 0;
  }
  taken_ = std::max(taken_, request.push.sequence);
  slot_->request = request;
  if (request.pull != 0) pull_behind_ = frame.number;
  slot_->posted.exchange(frame.number);
  wake(options_.doorbell);
}

void RemoteWorker::send() {
  for (;;) {
    wait_until(
        slot_->doorbell, options_.spin_policy,
        [&] {
          return stopping_.load() || gone_since() || pull_.load() >= 0 || slot_->answered.load() > sent_;
        },
        [] {});
    check();
    if (const int64_t version = pull_.exchange(-1); version >= 0) send_parameters(version);
    if (const uint64_t answered = slot_->answered.load(); answered > sent_) send_reply(answered);
  }
}

void RemoteWorker::send_reply(uint64_t number) {
  if (copied_.load() != number) {
    reply_ = slot_->reply;
    copied_.exchange(number);
  }
  const Frame frame = {.kind = Frame::Kind::kReply, .number = number, .bytes = sizeof(reply_)};
  const std::array<iovec, 2> parts = {iovec{const_cast<Frame*>(&frame), sizeof(frame)},
                                      iovec{&reply_, sizeof(reply_)}};
  link_->send(parts, [this] { check(); });
  sent_ = number;
  if (pull_behind_.load() == number && reply_.kind != Reply::Kind::kTaken) send_parameters(reply_.version);
}

void RemoteWorker::send_parameters(int64_t at_least) {
  const auto checks = [this] { check(); };
  for (;;) {
    Outgoing outgoing(options_, *link_, copies_);
    link_->send_one(Frame{.kind = Frame::Kind::kParameters, .bytes = outgoing.total()}, checks);
    const auto version = options_.view.try_read(
        at_least, {*slot_, options_.doorbell, options_.spin_policy, checks, [&] { outgoing.send_some(); }},
        [&](const StoreView::Range& range, const std::byte* data) {
          outgoing.add(layout_[range.slice].dtype, data, range.count);
        });
    outgoing.finish({.kind = Frame::Kind::kWhole,
                     .index = version.has_value() ? 1U : 0U,
                     .number = static_cast<uint64_t>(version.value_or(0))},
                    checks);
    if (version) return;
  }
}

}  // namespace muster::detail
