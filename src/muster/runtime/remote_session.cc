#include "muster/runtime/remote_session.h"

#include <cstdio>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/runtime/received_graph.h"
#include "muster/runtime/server_secret.h"
#include "muster/runtime/worker.h"

namespace muster::detail {

namespace {

constexpr auto kAnswerTimeout = std::chrono::seconds(30);
constexpr auto kStallWarning = std::chrono::seconds(10);
// How long a run that has failed waits for the other tasks to end it too.
constexpr auto kGrace = std::chrono::seconds(1);

}  // namespace

// A task can't be reached, and nothing has begun.
class RemoteSession::NotBegun final : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

// Made ready again where a task was lost, at once where nothing has begun.
class RemoteSession::RemoteCallable final : public Callable::State {
 public:
  RemoteCallable(RemoteSession& session, const Signature& signature)
      : session_(session), signature_(signature) {
    for (const auto& feed : signature.feeds)
      feeds_.push_back({.name = feed.name(), .dtype = feed.dtype(), .shape = feed.shape()});
    const MutexLock lock(mutex_);
    prepared_ = std::make_shared<runtime::Prepared>(session.prepare_at_master(signature_));
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& feeds) override {
    Program::check(feeds_, feeds);
    const auto prepared = ready();
    try {
      try {
        return session_.run(*prepared, feeds, signature_.fetches.size());
      } catch (const NotBegun&) {
        forget(prepared);
        return session_.run(*ready(), feeds, signature_.fetches.size());
      }
    } catch (const PeerLost&) {
      forget(prepared);
      throw;
    }
  }

 private:
  std::shared_ptr<runtime::Prepared> ready() {
    const MutexLock lock(mutex_);
    if (!prepared_) prepared_ = std::make_shared<runtime::Prepared>(session_.prepare_at_master(signature_));
    return prepared_;
  }

  void forget(const std::shared_ptr<runtime::Prepared>& prepared) {
    const MutexLock lock(mutex_);
    if (prepared_ == prepared) prepared_.reset();
  }

  RemoteSession& session_;
  const Signature signature_;
  std::vector<Program::Feed> feeds_;
  Mutex mutex_;
  std::shared_ptr<runtime::Prepared> prepared_ MUSTER_GUARDED_BY(mutex_);  // shared with runs under way
};

RemoteSession::RemoteSession(const std::string& target, const Graph& graph, Session::Options options)
    : graph_(graph),
      options_(std::move(options)),
      address_(address_of_target(target)),
      secret_(secret_for_client(target, options_.secret)),
      endpoint_({.host = "127.0.0.1", .secret = secret_}),
      next_step_(random_number()) {
  const MutexLock lock(preparing_);
  open(Deadline::after(kAnswerTimeout));
}

RemoteSession::~RemoteSession() {
  std::vector<std::unique_ptr<TaskLink>> links;
  {
    const MutexLock lock(mutex_);
    links = std::exchange(lost_, {});
    for (auto& [name, task] : links_) links.push_back(std::move(task));
    links_.clear();
  }
  for (const auto& task : links) {
    task->link->end();
    task->reader.join();
  }
}

void RemoteSession::open(Deadline deadline) {
  master_ = std::make_unique<RuntimeClient>(address_, secret_, deadline);
  sent_nodes_ = 0;
  runtime::Request request;
  auto* session = request.mutable_open_session();
  session->set_container(options_.container);
  session->set_is_private(options_.private_variables);
  session->set_soft_placement(options_.soft_placement);
  ask(std::move(request), Deadline::never());
}

runtime::Reply RemoteSession::ask(runtime::Request request, Deadline deadline) {
  preparing_.assert_held();
  return master_->wait(master_->send(std::move(request)), deadline, {},
                       [](const std::string& notice) { log_info("{}", notice); });
}

// All of it, since a part may refer to any other.
void RemoteSession::send_graph(Deadline deadline) {
  SavedGraph saved = to_proto(graph_);
  runtime::Request request;
  request.mutable_set_graph()->set_transfer(random_number());
  const uint64_t transfer = request.set_graph().transfer();
  *request.mutable_set_graph()->mutable_graph() = std::move(saved.proto);
  if (!saved.tensors.empty()) send_tensors(*link_to(master_->server()).link, saved, transfer);
  ask(std::move(request), deadline);
  sent_nodes_ = graph_.size();
}

runtime::Prepared RemoteSession::prepare_at_master(const Signature& signature) {
  const MutexLock lock(preparing_);
  if (!master_->is_alive()) open(Deadline::after(kAnswerTimeout));
  if (sent_nodes_ != graph_.size()) send_graph(Deadline::never());
  runtime::Request request;
  auto* prepare = request.mutable_prepare();
  *prepare->mutable_signature() = to_proto(signature);
  prepare->set_say_placement(options_.log_device_placement);
  prepare->set_fold_constants(options_.fold_constants);
  prepare->set_share_subexpressions(options_.share_subexpressions);
  prepare->set_join_gradients(options_.join_gradients);
  runtime::Prepared prepared = ask(std::move(request), Deadline::never()).prepared();
  for (const auto& placed : prepared.placed())
    fmt::print(stderr, "{}: ({}): {}\n", placed.name(), placed.op(), placed.device());
  return prepared;
}

std::shared_ptr<Callable::State> RemoteSession::prepare(const Signature& signature) {
  return std::make_shared<RemoteCallable>(*this, signature);
}

RemoteSession::TaskLink& RemoteSession::link_to(const runtime::Peer& peer) {
  {
    const MutexLock lock(mutex_);
    if (const auto found = links_.find(peer.local_name()); found != links_.end()) {
      if (!found->second->is_lost) return *found->second;
      lost_.push_back(std::move(found->second));  // runs may still look at it
      links_.erase(found);
    }
  }
  std::shared_ptr<StepLink> link;
  try {
    link = connect_to(endpoint_, memory_, peer, kClientChannel, Deadline::after(kAnswerTimeout));
  } catch (const Error& error) {
    raise<NotBegun>("{} was lost: {}", peer.task(), error.what());
  }
  auto made = std::make_unique<TaskLink>();
  made->peer = peer;
  made->link = std::move(link);
  const MutexLock lock(mutex_);
  const auto [found, is_new] = links_.emplace(peer.local_name(), std::move(made));
  TaskLink& task = *found->second;
  if (is_new) task.reader = std::thread([this, &task] { read(task); });
  return task;
}

void RemoteSession::read(TaskLink& task) {
  std::string why;
  try {
    while (true) receive(task, task.link->receive());
  } catch (const std::exception& error) {
    why = error.what();
  }
  const MutexLock lock(mutex_);
  task.is_lost = true;
  for (auto& [id, step] : steps_) {
    for (const auto& part : step->parts) {
      if (part.task == &task && !part.is_done)
        fail(*step, {StepStatus::Code::kPeerLost, fmt::format("{} was lost: {}", task.peer.task(), why)});
    }
  }
}

void RemoteSession::receive(TaskLink& task, StepFrame frame) {
  const MutexLock lock(mutex_);
  const auto found = steps_.find(frame.step);
  if (found == steps_.end()) return;  // of a run that has failed
  Step& step = *found->second;
  for (auto& part : step.parts) {
    if (part.task != &task) continue;
    if (frame.kind == StepFrame::Kind::kValue) {
      if (frame.key >= static_cast<uint32_t>(part.prepared->fetches_size()) || !frame.value.isTensor())
        raise<InvalidArgument>("a result came that was not asked for");
      step.results[part.prepared->fetches(static_cast<int>(frame.key))] = std::move(frame.value).toTensor();
    } else if (frame.kind == StepFrame::Kind::kDone && !part.is_done) {
      part.is_done = true;
      --step.missing;
      const auto status = StepStatus::received(frame.key, frame.text);
      if (!status.ok()) {
        fail(step, status);
      } else if (step.missing == 0) {
        step.changed.notify_all();
      }
    }
  }
}

// The first failure counts, unless it is only that somebody was told of another one.
void RemoteSession::fail(Step& step, const StepStatus& status) {
  if (step.status.ok() || (step.status.code == StepStatus::Code::kAborted)) step.status = status;
  step.changed.notify_all();
}

std::string RemoteSession::missing_tasks(const Step& step) const {
  std::vector<std::string> names;
  for (const auto& part : step.parts) {
    if (!part.is_done) names.push_back(part.task->peer.task());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void RemoteSession::abort_others(uint64_t id, Step& step) {
  for (const auto& part : step.parts) {
    if (part.is_done || part.task->is_lost) continue;
    try {
      part.task->link->send({.kind = StepFrame::Kind::kAbort, .step = id, .text = step.status.text});
    } catch (const Error&) {
      // It is lost too.
    }
  }
}

std::vector<at::Tensor> RemoteSession::run(const runtime::Prepared& prepared,
                                           const std::vector<at::Tensor>& feeds, size_t fetches) {
  Step step;
  step.results.resize(fetches);
  for (const auto& part : prepared.parts())
    step.parts.push_back({.task = &link_to(part.peer()), .prepared = &part});
  step.missing = step.parts.size();
  uint64_t id = 0;
  {
    const MutexLock lock(mutex_);
    id = next_step_++;
    steps_.emplace(id, &step);
    for (const auto& part : step.parts) {
      if (part.task->is_lost)
        fail(step, {StepStatus::Code::kPeerLost, fmt::format("{} was lost", part.task->peer.task())});
    }
  }
  const std::shared_ptr<void> forget(nullptr, [&](void*) {
    const MutexLock lock(mutex_);
    steps_.erase(id);
  });
  for (const auto& part : step.parts) {
    try {
      for (int i = 0; i < part.prepared->feeds_size(); ++i)
        part.task->link->send({.kind = StepFrame::Kind::kValue,
                               .key = static_cast<uint32_t>(i),
                               .step = id,
                               .value = feeds[part.prepared->feeds(i)]});
      part.task->link->send({.kind = StepFrame::Kind::kRun, .step = id, .handle = prepared.handle()});
    } catch (const Error& error) {
      const MutexLock lock(mutex_);
      fail(step, {StepStatus::Code::kPeerLost,
                  fmt::format("{} was lost: {}", part.task->peer.task(), error.what())});
      break;
    }
  }

  const auto deadline = options_.timeout.count() > 0 ? Deadline::after(options_.timeout) : Deadline::never();
  auto warning = Deadline::after(kStallWarning);
  MutexLock lock(mutex_);
  while (step.missing > 0 && step.status.ok()) {
    if (deadline.expired()) {
      step.status = {StepStatus::Code::kDeadlineExceeded,
                     fmt::format("a run took longer than {}: {} did not end it",
                                 format_seconds(options_.timeout), missing_tasks(step))};
      break;
    }
    if (warning.expired()) {
      log_warning("a run still waits for {}", missing_tasks(step));
      warning = Deadline::never();
    }
    step.changed.wait_until(lock, deadline.earlier(warning).time_point());
  }
  if (step.status.ok()) return std::move(step.results);
  // A failure that somebody was only told of is explained by another one that may be on its way.
  const auto grace = Deadline::after(kGrace);
  lock.unlock();
  abort_others(id, step);
  lock.lock();
  while (step.missing > 0 && !grace.expired()) {
    bool is_anybody_left = false;
    for (const auto& part : step.parts) is_anybody_left |= !part.is_done && !part.task->is_lost;
    if (!is_anybody_left) break;
    step.changed.wait_until(lock, grace.time_point());
  }
  const StepStatus status = step.status;
  lock.unlock();
  status.raise_if_failed();
  return {};
}

}  // namespace muster::detail
