#include "muster/runtime/remote_session.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/config.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/runtime/part_times.h"
#include "muster/runtime/received_graph.h"
#include "muster/runtime/server_secret.h"
#include "muster/runtime/stall_warning.h"
#include "muster/runtime/worker.h"

namespace muster::detail {

namespace {

constexpr auto kAnswerTimeout = std::chrono::seconds(30);
// How long a run that has failed waits for the other tasks to end it too.
constexpr auto kGrace = std::chrono::seconds(1);
// How long a task may take to hear that a run has failed; then the link to it is ended, and so the run.
constexpr auto kAbortTimeout = std::chrono::seconds(5);

constexpr int64_t kMostMilliseconds = std::numeric_limits<uint32_t>::max();

// A master says which of the feeds and fetches each task has.
void check_prepared(const runtime::Prepared& prepared, const Signature& signature) {
  const auto check = [](const auto& indices, size_t size) {
    for (const uint32_t index : indices) {
      if (index >= size) throw DataLoss("the master names a feed or a fetch that a run does not have");
    }
  };
  for (const auto& part : prepared.parts()) {
    check(part.feeds(), signature.feeds.size());
    check(part.fetches(), signature.fetches.size());
  }
}

Config settings_of_job() {
  Config config;
  config.read_environment(Environment::of_process());
  return config;
}

// A run may be long work and no wait, so that the default, which is for waits, is none for runs.
Session::Options with_timeout_of_job(Session::Options options, const Config& job) {
  if (options.timeout.count() == 0 && job.collective_timeout != Config().collective_timeout)
    options.timeout = job.collective_timeout;
  return options;
}

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
    ready(session.deadline_of_run());
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& feeds, Timeline* timeline) override {
    Program::check(feeds_, feeds);
    const Deadline deadline = session_.deadline_of_run();
    const auto prepared = ready(deadline);
    try {
      try {
        return session_.run(*prepared, feeds, signature_.fetches.size(), deadline, timeline);
      } catch (const NotBegun&) {
        forget(prepared);
        return session_.run(*ready(deadline), feeds, signature_.fetches.size(), deadline, timeline);
      }
    } catch (const PeerLost&) {
      forget(prepared);
      throw;
    }
  }

 private:
  std::shared_ptr<runtime::Prepared> ready(Deadline deadline) {
    const MutexLock lock(mutex_);
    const uint64_t placements = session_.graph_now().placements;
    if (!prepared_ || placements != placements_)
      prepared_ = std::make_shared<runtime::Prepared>(session_.prepare_at_master(signature_, deadline));
    placements_ = placements;
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
  uint64_t placements_ MUSTER_GUARDED_BY(mutex_) = 0;                      // when it was prepared
};

RemoteSession::RemoteSession(const std::string& target, const Graph& graph, Session::Options options)
    : RemoteSession(target, graph, std::move(options), settings_of_job()) {}

RemoteSession::RemoteSession(const std::string& target, const Graph& graph, Session::Options options,
                             const Config& job)
    : graph_(graph),
      options_(with_timeout_of_job(std::move(options), job)),
      address_(address_of_target(target)),
      secret_(secret_for_client(target, options_.secret)),
      stall_warning_(job.stall_warning),
      endpoint_({.host = "127.0.0.1", .secret = secret_}),
      next_step_(random_number()) {
  if (options_.private_variables && !options_.container.empty())
    raise<InvalidArgument>(
        "Session::Options has a container, '{}', which other sessions share, and private_variables: leave "
        "one "
        "of them out",
        options_.container);
  const MutexLock lock(preparing_);
  const auto wait = options_.wait_for_tasks;
  try {
    open(Deadline::after(kAnswerTimeout), wait.count() > 0 ? Deadline::after(wait) : Deadline::never());
  } catch (const DeadlineExceeded&) {
    if (missing_.empty()) throw;
    raise<DeadlineExceeded>("not all tasks of the cluster have come within {}: {}", format_seconds(wait),
                            missing_);
  }
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

Deadline RemoteSession::deadline_of_run() const {
  return options_.timeout.count() > 0 ? Deadline::after(options_.timeout) : Deadline::never();
}

RemoteSession::GraphState RemoteSession::graph_now() const {
  return {.nodes = graph_.size(), .placements = graph_.data().placements};
}

void RemoteSession::open(Deadline deadline, Deadline until_all_are_there) {
  master_ = std::make_unique<RuntimeClient>(address_, secret_, deadline);
  sent_ = {};
  runtime::Request request;
  auto* session = request.mutable_open_session();
  session->set_container(options_.container);
  session->set_is_private(options_.private_variables);
  session->set_soft_placement(options_.soft_placement);
  ask(std::move(request), until_all_are_there);
}

runtime::Reply RemoteSession::ask(runtime::Request request, Deadline deadline) {
  return master_->wait(master_->send(std::move(request)), deadline, {}, [this](const std::string& notice) {
    preparing_.assert_held();
    missing_ = notice;
    log_info("{}", notice);
  });
}

// All of it, since a part may refer to any other.
void RemoteSession::send_whole_graph(Deadline deadline) {
  const uint64_t transfer = random_number();
  const runtime::Peer& master = master_->server();
  send_graph(*link_to(master, deadline).link, to_proto(graph_), transfer, [&] {
    if (deadline.expired()) throw DeadlineExceeded(too_long(master.task()));
  });
  runtime::Request request;
  request.mutable_set_graph()->set_transfer(transfer);
  ask(std::move(request), deadline);
  sent_ = graph_now();
}

runtime::Prepared RemoteSession::prepare_at_master(const Signature& signature, Deadline deadline) {
  const MutexLock lock(preparing_);
  if (!master_->is_alive()) open(Deadline::after(kAnswerTimeout).earlier(deadline), deadline);
  if (sent_ != graph_now()) send_whole_graph(deadline);
  runtime::Request request;
  auto* prepare = request.mutable_prepare();
  *prepare->mutable_signature() = to_proto(signature);
  prepare->set_say_placement(options_.log_device_placement);
  prepare->set_fold_constants(options_.fold_constants);
  prepare->set_share_subexpressions(options_.share_subexpressions);
  prepare->set_join_gradients(options_.join_gradients);
  auto answer = Deadline::never();
  if (!deadline.is_never()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    prepare->set_timeout_ms(static_cast<uint32_t>(std::clamp<int64_t>(left.count(), 1, kMostMilliseconds)));
    answer = Deadline::after(left + kGrace);  // the master knows better who takes too long
  }
  runtime::Prepared prepared = ask(std::move(request), answer).prepared();
  check_prepared(prepared, signature);
  for (const auto& placed : prepared.placed())
    fmt::print(stderr, "{}: ({}): {}\n", placed.name(), placed.op(), placed.device());
  return prepared;
}

std::shared_ptr<Callable::State> RemoteSession::prepare(const Signature& signature) {
  return std::make_shared<RemoteCallable>(*this, signature);
}

RemoteSession::TaskLink& RemoteSession::link_to(const runtime::Peer& peer, Deadline deadline) {
  {
    const MutexLock lock(mutex_);
    if (const auto found = links_.find(peer.local_name()); found != links_.end()) {
      if (!found->second->is_lost && !found->second->link->is_closed()) return *found->second;
      lost_.push_back(std::move(found->second));  // runs may still look at it
      links_.erase(found);
    }
  }
  std::shared_ptr<StepLink> link;
  try {
    link = connect_to(
        endpoint_, memory_, peer,
        {.kind = kClientChannel, .deadline = Deadline::after(kAnswerTimeout).earlier(deadline), .check = {}});
  } catch (const Error& error) {
    if (deadline.expired()) throw DeadlineExceeded(too_long(peer.task()));
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
    why = text_without_stack(error);
    task.link->end();
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
    if (frame.kind == StepFrame::Kind::kValue && !frame.status.ok()) {
      fail(step, frame.status);
    } else if (frame.kind == StepFrame::Kind::kValue) {
      const auto fetches = static_cast<uint32_t>(part.prepared->fetches_size());
      const uint32_t results = fetches + (step.timeline == nullptr ? 0 : 1);
      if (frame.key >= results || !frame.value.isTensor())
        raise<InvalidArgument>("a result came that was not asked for");
      at::Tensor value = std::move(frame.value).toTensor();
      if (frame.key == fetches) {
        add_spans(*step.timeline, task.peer.task(), unpack_times(value));
      } else {
        step.results[part.prepared->fetches(static_cast<int>(frame.key))] = std::move(value);
      }
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

std::string RemoteSession::too_long(const std::string& who) const {
  return fmt::format("a run took longer than {}: {} did not end it", format_seconds(options_.timeout), who);
}

void RemoteSession::abort_others(uint64_t id, const Step& step) {
  std::vector<std::shared_ptr<StepLink>> links;
  StepFrame abort = {.kind = StepFrame::Kind::kAbort, .step = id};
  {
    const MutexLock lock(mutex_);
    abort.text = step.status.text;
    for (const auto& part : step.parts) {
      if (!part.is_done && !part.task->is_lost) links.push_back(part.task->link);
    }
  }
  const auto deadline = Deadline::after(kAbortTimeout);
  for (const auto& link : links) {
    try {
      link->send(abort, [&deadline] {
        if (deadline.expired()) throw DeadlineExceeded("a task does not take that a run has failed");
      });
    } catch (const PeerLost&) {
      // It is lost too.
    } catch (const DeadlineExceeded&) {
      link->end();
    }
  }
}

// Gives each part its feeds and asks it to run. What fails is the step's status.
void RemoteSession::begin(uint64_t id, Step& step, const runtime::Prepared& prepared,
                          const std::vector<at::Tensor>& feeds, Deadline deadline) {
  for (auto& part : step.parts) {
    const std::string& name = part.task->peer.task();
    const auto check = [&] {
      const MutexLock lock(mutex_);
      if (!step.status.ok()) throw Aborted("another part of the run has failed");
      if (!deadline.expired()) return;
      // Said before the link is ended, which its reader will take for the loss of the task.
      fail(step, {StepStatus::Code::kDeadlineExceeded, too_long(name)});
      throw Aborted("the run has failed");
    };
    try {
      for (int i = 0; i < part.prepared->feeds_size(); ++i)
        part.task->link->send({.kind = StepFrame::Kind::kValue,
                               .key = static_cast<uint32_t>(i),
                               .step = id,
                               .value = feeds[part.prepared->feeds(i)]},
                              check);
      const auto noting = step.timeline == nullptr ? Noting::kNone : Noting::kTimes;
      part.task->link->send({.kind = StepFrame::Kind::kRun,
                             .key = static_cast<uint32_t>(noting),
                             .step = id,
                             .handle = prepared.handle()},
                            check);
      const MutexLock lock(mutex_);
      part.has_begun = true;
    } catch (const std::exception& error) {
      auto status = StepStatus::of(error);
      if (status.code == StepStatus::Code::kPeerLost)
        status.text = fmt::format("{} was lost: {}", name, status.text);
      const MutexLock lock(mutex_);
      if (step.status.ok()) fail(step, status);
      return;
    }
  }
}

std::vector<at::Tensor> RemoteSession::run(const runtime::Prepared& prepared,
                                           const std::vector<at::Tensor>& feeds, size_t fetches,
                                           Deadline deadline, Timeline* timeline) {
  if (timeline != nullptr) timeline->spans.clear();
  Step step;
  step.results.resize(fetches);
  step.timeline = timeline;
  for (const auto& part : prepared.parts())
    step.parts.push_back({.task = &link_to(part.peer(), deadline), .prepared = &part});
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
  begin(id, step, prepared, feeds, deadline);

  StallWarning warning(stall_warning_);
  MutexLock lock(mutex_);
  while (step.missing > 0 && step.status.ok()) {
    if (deadline.expired()) {
      step.status = {StepStatus::Code::kDeadlineExceeded, too_long(missing_tasks(step))};
      break;
    }
    if (warning.is_due()) log_warning("a run still waits for {}", missing_tasks(step));
    step.changed.wait_until(lock, deadline.earlier(warning.when()).time_point());
  }
  if (step.status.ok()) {
    if (timeline != nullptr) put_in_order(*timeline);
    return std::move(step.results);
  }
  // A failure that somebody was only told of is explained by another one that may be on its way.
  const auto grace = Deadline::after(kGrace);
  lock.unlock();
  abort_others(id, step);
  lock.lock();
  while (step.missing > 0 && !grace.expired()) {
    bool is_anybody_left = false;
    for (const auto& part : step.parts)
      is_anybody_left |= part.has_begun && !part.is_done && !part.task->is_lost;
    if (!is_anybody_left) break;
    step.changed.wait_until(lock, grace.time_point());
  }
  const StepStatus status = step.status;
  lock.unlock();
  status.raise_if_failed();
  return {};
}

}  // namespace muster::detail
