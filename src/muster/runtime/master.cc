#include "muster/runtime/master.h"

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/random.h"
#include "muster/graph/partitioner.h"
#include "muster/graph/placer.h"
#include "muster/runtime/received_graph.h"
#include "muster/runtime/step_status.h"

namespace muster::detail {

namespace {

constexpr auto kNoticeEvery = std::chrono::seconds(3);
constexpr auto kTryEvery = std::chrono::milliseconds(100);
constexpr auto kAttempt = std::chrono::seconds(5);
// How long a task that was there may be away before a client hears that it is lost.
constexpr auto kReconnect = std::chrono::seconds(2);

}  // namespace

// A client's session. One thread at a time works on its requests.
class Master::Session {
 public:
  Session(const Options& options, uint64_t stream)
      : options_(options), stream_(stream), tasks_(options.cluster.tasks()), workers_(tasks_.size()) {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      if (tasks_[i] == options.self) self_ = i;
    }
  }

  // True when somebody has to begin to work on the requests.
  bool add(const runtime::Request& request) {
    const MutexLock lock(mutex_);
    requests_.push_back(request);
    return !std::exchange(is_busy_, true);
  }

  void close() {
    const MutexLock lock(mutex_);
    is_closed_ = true;
    if (transfer_)
      options_.worker->rendezvous().abort(*transfer_, {StepStatus::Code::kAborted, "the session has ended"});
    changed_.notify_all();
  }

  void work() {
    while (true) {
      runtime::Request request;
      {
        const MutexLock lock(mutex_);
        if (requests_.empty() || is_closed_) {
          is_busy_ = false;
          return;
        }
        request = std::move(requests_.front());
        requests_.pop_front();
      }
      runtime::Reply reply;
      reply.set_id(request.id());
      try {
        handle(request, reply);
      } catch (const std::exception& error) {
        const StepStatus status = StepStatus::of(error);
        reply.set_code(static_cast<uint32_t>(status.code));
        reply.set_message(status.text);
      }
      options_.streams->reply(stream_, reply);
    }
  }

 private:
  void handle(const runtime::Request& request, runtime::Reply& reply) {
    switch (request.what_case()) {
      case runtime::Request::kOpenSession:
        open_ = request.open_session();
        for (size_t i = 0; i < tasks_.size(); ++i) connect(i, Deadline::never());
        break;
      case runtime::Request::kSetGraph:
        set_graph(request.set_graph());
        break;
      case runtime::Request::kPrepare:
        *reply.mutable_prepared() = prepare(request.prepare());
        break;
      default:
        raise<InvalidArgument>("a master is asked for what it does not know");
    }
  }

  void check_open() {
    const MutexLock lock(mutex_);
    if (is_closed_) throw Aborted("the session has ended");
  }

  // A wait that says now and then whom it waits for, until the deadline.
  class Waiting {
   public:
    Waiting(Session& session, const char* what, size_t task, Deadline deadline)
        : session_(session), what_(what), task_(task), deadline_(deadline) {}

    void check() {
      session_.check_open();
      if (deadline_.expired())
        raise<DeadlineExceeded>("{}: {} did not answer in time", what_, session_.tasks_[task_].to_string());
      if (std::chrono::steady_clock::now() < next_) return;
      next_ += kNoticeEvery;
      TaskName name = session_.tasks_[task_];
      name.replica = 0;
      session_.options_.streams->notice(
          session_.stream_,
          fmt::format("{} still waiting for response from worker: {}", what_, name.to_string()));
    }

   private:
    Session& session_;
    const char* what_;
    const size_t task_;
    const Deadline deadline_;
    std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kNoticeEvery;
  };

  void connect(size_t task, Deadline deadline) {
    if (workers_[task] && workers_[task]->is_alive()) return;
    workers_[task].reset();
    Waiting waiting(*this, "CreateSession", task, Deadline::never());
    std::string why;
    while (true) {
      try {
        workers_[task] = std::make_unique<RuntimeClient>(
            options_.cluster.address(tasks_[task]), options_.secret,
            Deadline::after(kAttempt).earlier(deadline), [&waiting] { waiting.check(); });
        const std::string& found = workers_[task]->server().task();
        if (found != tasks_[task].to_string())
          raise<Refused>("{} answers where {} should be: the tasks were given different clusters", found,
                         tasks_[task].to_string());
        return;
      } catch (const PeerLost& error) {
        why = error.what();
      } catch (const DeadlineExceeded& error) {
        why = error.what();
      }
      if (deadline.expired()) raise<PeerLost>("{} was lost: {}", tasks_[task].to_string(), why);
      waiting.check();
      MutexLock lock(mutex_);
      if (!is_closed_) changed_.wait_for(lock, kTryEvery);
    }
  }

  void set_graph(const runtime::SetGraph& request) {
    const auto waits_for = [this](std::optional<uint64_t> transfer) {
      const MutexLock lock(mutex_);
      if (is_closed_) throw Aborted("the session has ended");
      transfer_ = transfer;
    };
    waits_for(request.transfer());
    graph_.emplace(receive_graph(request.transfer(), options_.worker->rendezvous(),
                                 Deadline::after(std::chrono::minutes(10))));
    waits_for({});
    check_is_whole(graph_->data());
  }

  runtime::Prepared prepare(const runtime::Prepare& request) {
    if (!graph_) raise<InvalidArgument>("the session has no graph");
    const Signature signature = signature_of(request.signature(), *graph_);
    const auto nodes = needed_nodes(signature);
    const GraphPlacement placement =
        place(nodes, {.tasks = tasks_, .default_task = self_, .soft = open_.soft_placement()});
    const Partition cut = partition(signature, nodes, placement);

    runtime::Prepared prepared;
    prepared.set_handle(random_number() | 1);
    const auto deadline = request.timeout_ms() == 0
                              ? Deadline::never()
                              : Deadline::after(std::chrono::milliseconds(request.timeout_ms()));
    const auto reconnect = Deadline::after(kReconnect).earlier(deadline);
    for (const auto& part : cut.parts) {
      connect(part.task, reconnect);
      for (const size_t peer : part.peers) connect(peer, reconnect);
    }
    std::vector<uint64_t> requests;
    for (const auto& part : cut.parts) {
      Waiting waiting(*this, "RegisterGraph", part.task, deadline);
      requests.push_back(send_part(part, request, prepared.handle(), [&waiting] { waiting.check(); }));
      auto* made = prepared.add_parts();
      *made->mutable_peer() = workers_[part.task]->server();
      for (const size_t feed : part.feeds) made->add_feeds(static_cast<uint32_t>(feed));
      for (const size_t fetch : part.fetches) made->add_fetches(static_cast<uint32_t>(fetch));
    }
    for (size_t i = 0; i < cut.parts.size(); ++i) {
      const size_t task = cut.parts[i].task;
      Waiting waiting(*this, "RegisterGraph", task, deadline);
      try {
        workers_[task]->wait(requests[i], Deadline::never(), [&waiting] { waiting.check(); });
      } catch (const PeerLost& error) {
        raise<PeerLost>("{} was lost: {}", tasks_[task].to_string(), error.what());
      }
    }
    if (request.say_placement()) {
      for (const auto* node : nodes) {
        auto* placed = prepared.add_placed();
        placed->set_name(node->name);
        placed->set_op(node->op->name());
        placed->set_device(placement.device(*node));
      }
    }
    return prepared;
  }

  uint64_t send_part(const Part& part, const runtime::Prepare& request, uint64_t handle,
                     const StepLink::Check& check) {
    runtime::Request message;
    auto* made = message.mutable_register_();
    made->set_handle(handle);
    made->set_container(open_.container());
    made->set_is_private(open_.is_private());
    made->set_transfer(random_number());
    *made->mutable_signature() = to_proto(part.signature);
    for (const size_t peer : part.peers) *made->add_peers() = workers_[peer]->server();
    made->set_fold_constants(request.fold_constants());
    made->set_share_subexpressions(request.share_subexpressions());
    made->set_join_gradients(request.join_gradients());
    const uint64_t transfer = made->transfer();
    const auto& peer = workers_[part.task]->server();
    const uint64_t number = workers_[part.task]->send(std::move(message));
    try {
      send_graph(*options_.worker->link_to(peer, check), to_proto(part.graph), transfer, check);
    } catch (const PeerLost& error) {
      raise<PeerLost>("{} was lost: {}", peer.task(), error.what());
    }
    return number;
  }

  const Options& options_;
  const uint64_t stream_;
  const std::vector<TaskName> tasks_;
  size_t self_ = 0;

  // Of the thread that works on the requests.
  runtime::OpenSession open_;
  std::optional<Graph> graph_;
  std::vector<std::unique_ptr<RuntimeClient>> workers_;  // by task

  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<runtime::Request> requests_ MUSTER_GUARDED_BY(mutex_);
  bool is_busy_ MUSTER_GUARDED_BY(mutex_) = false;
  bool is_closed_ MUSTER_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> transfer_ MUSTER_GUARDED_BY(mutex_);  // that it waits for
};

Master::Master(const Options& options) : options_(options) {}

Master::~Master() {
  stop();
}

void Master::handle(uint64_t stream, const runtime::Request& request) {
  const MutexLock lock(mutex_);
  if (stopping_) return;
  auto& session = sessions_[stream];
  if (!session) session = std::make_shared<Session>(options_, stream);
  if (session->add(request)) threads_.run([session] { session->work(); });
}

void Master::end(uint64_t stream) {
  std::shared_ptr<Session> session;
  {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(stream);
    if (found == sessions_.end()) return;
    session = std::move(found->second);
    sessions_.erase(found);
  }
  session->close();
  // Its streams to workers end with it: not in a thread of gRPC's, which those streams need.
  threads_.run([session]() mutable { session.reset(); });
}

void Master::stop() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    for (const auto& [stream, session] : sessions_) session->close();
  }
  threads_.stop();
  const MutexLock lock(mutex_);
  sessions_.clear();
}

}  // namespace muster::detail
