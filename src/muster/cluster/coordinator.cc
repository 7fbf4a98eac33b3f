#include "muster/cluster/coordinator.h"

#include <thread>

#include <fmt/format.h>

#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/cluster/coordinator_state.h"
#include "muster/cluster/coordinator_stream.h"

namespace muster::detail {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kIdleReminderInterval = std::chrono::seconds(3);

}  // namespace

// The state behind a lock, between the streams and a clock. The lock is taken before the streams' own, never
// the other way round.
class Coordinator::Impl {
 public:
  explicit Impl(const Options& options)
      : state_({.job_id = options.job_id,
                .secret = options.secret,
                .tasks = options.tasks,
                .heartbeat_timeout = options.heartbeat_timeout,
                .failure_policy = options.failure_policy,
                .restarts = options.restarts,
                .logs_aborts = options.logs_aborts,
                .waits = {.stall_warning = options.stall_warning, .timeout = options.wait_timeout}},
               {.send = [this](Id id,
                               proto::FromCoordinator message) { streams_->send(id, std::move(message)); },
                .close = [this](Id id) { streams_->close(id); }}) {
    // No stream is heard before the server is there to answer it.
    const MutexLock lock(mutex_);
    streams_ = std::make_unique<CoordinatorStreamServer>(
        options.listen,
        CoordinatorStreamServer::Handler{
            .connected =
                [this](Id id, const std::string& peer) {
                  update([&](CoordinatorState& state, auto now) { state.connected(id, peer, now); });
                },
            .received =
                [this](Id id, const proto::FromMember& message) {
                  update([&](CoordinatorState& state, auto now) { state.received(id, message, now); });
                },
            .disconnected =
                [this](Id id) {
                  update([&](CoordinatorState& state, auto now) { state.disconnected(id, now); });
                }});
    ticker_ = std::thread([this] { run_ticker(); });
  }

  ~Impl() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    ticker_.join();
    streams_->shutdown();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Address& address() const { return streams_->address(); }

  template <typename Function>
  auto with_state(Function function) {
    const MutexLock lock(mutex_);
    return function(state_);
  }

  bool wait_idle(Deadline deadline) {
    MutexLock lock(mutex_);
    auto next_reminder = Deadline::after(kIdleReminderInterval);
    while (!state_.idle()) {
      if (deadline.expired()) return false;
      if (next_reminder.expired()) {
        log_info("still waiting for {} to finish", fmt::join(state_.present(), ", "));
        next_reminder = Deadline::after(kIdleReminderInterval);
      }
      changed_.wait_until(lock, deadline.earlier(next_reminder).time_point());
    }
    return true;
  }

 private:
  using Id = CoordinatorStreamServer::Id;

  template <typename Function>
  void update(Function function) {
    const MutexLock lock(mutex_);
    function(state_, Deadline::Clock::now());
    changed_.notify_all();
  }

  void run_ticker() {
    const ScopedLogTask task("coordinator");
    MutexLock lock(mutex_);
    while (!stopping_) {
      state_.tick(Deadline::Clock::now());
      changed_.wait_for(lock, kTick);
    }
  }

  Mutex mutex_;
  ConditionVariable changed_;
  CoordinatorState state_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  // Constant after construction.
  std::unique_ptr<CoordinatorStreamServer> streams_;
  std::thread ticker_;
};

Coordinator::Coordinator(const Options& options) : impl_(std::make_unique<Impl>(options)) {}

Coordinator::~Coordinator() = default;

const Address& Coordinator::address() const {
  return impl_->address();
}

void Coordinator::abort(const std::string& reason, std::optional<TaskName> by) {
  impl_->with_state([&](CoordinatorState& state) { state.abort(reason, std::move(by)); });
}

std::optional<Coordinator::AbortRecord> Coordinator::aborted() const {
  return impl_->with_state([](CoordinatorState& state) { return state.aborted(); });
}

bool Coordinator::wait_idle(Deadline deadline) {
  return impl_->wait_idle(deadline);
}

}  // namespace muster::detail
