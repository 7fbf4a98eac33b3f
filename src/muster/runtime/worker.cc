#include "muster/runtime/worker.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/graph/graph_proto.h"
#include "muster/net/host.h"
#include "muster/runtime/part_times.h"
#include "muster/runtime/received_graph.h"
#include "muster/runtime/replica_coordinator.h"
#include "muster/runtime/step_status.h"

namespace muster::detail {

namespace {

constexpr const char* kPeerChannel = "runtime/task/";
// Behind the kind of a channel, where both sides have the other's memory.
constexpr const char* kShared = "shared/";
constexpr auto kConnectTimeout = std::chrono::seconds(30);

}  // namespace

std::shared_ptr<StepLink> connect_to(Endpoint& endpoint, TaskMemory& memory, const runtime::Peer& peer,
                                     const ConnectOptions& options) {
  static const std::string here = Host::local().identity;  // a constant: nobody changes it
  const auto& [kind, deadline, check] = options;
  const bool is_client = kind == kClientChannel;
  if (!memory.is_shared() || peer.host_identity() != here)
    return std::make_shared<StepLink>(
        endpoint.connect(Address::parse(peer.address()), kind + random_token(), deadline, check),
        StepLink::Options{.memory = &memory});
  Connection connection =
      endpoint.connect_local(peer.local_name(), kind + kShared + random_token(), deadline, check);
  auto shared = SharedValues::exchange(connection, memory, deadline, check);
  return std::make_shared<StepLink>(
      std::move(connection),
      StepLink::Options{.memory = &memory, .shared = std::move(shared), .copies = is_client});
}

// The other tasks, for one step.
class Worker::Exchange final : public StepExchange {
 public:
  Exchange(Worker& worker, const Registered& part, uint64_t step)
      : worker_(worker), part_(part), step_(step), values_(worker.rendezvous_.step(step)) {}

  uint64_t step() const override { return step_; }

  void send(const Sent& sent, const c10::IValue& value) override {
    const auto peer = part_.peers.find(sent.task);
    MUSTER_CHECK(peer != part_.peers.end(), "a part sends to a task that it does not know");
    const StepFrame frame = {.kind = StepFrame::Kind::kValue, .key = sent.key, .step = step_, .value = value};
    // A link that another step has ended, as it was called off, is no loss of the task behind it.
    for (const bool may_try_again : {true, false}) {
      std::shared_ptr<StepLink> link;
      try {
        link = worker_.link_to(peer->second, check_);
        link->send(frame, check_);
        return;
      } catch (const InvalidArgument&) {
        throw;
      } catch (const Error& error) {
        values_->check();  // why it was called off
        if (!link || !may_try_again) raise<PeerLost>("{} was lost: {}", peer->second.task(), error.what());
      }
    }
  }

  void check() override { values_->check(); }

  void take_back() override { worker_.take_back(); }

  std::vector<std::pair<uint32_t, c10::IValue>> receive(bool may_wait) override {
    return values_->take(may_wait);
  }

 private:
  Worker& worker_;
  const Registered& part_;
  const uint64_t step_;
  const std::shared_ptr<StepValues> values_;
  const StepLink::Check check_ = [this] { values_->check(); };
};

Worker::Worker(const Options& options)
    : options_(options),
      memory_(options.shares_memory, options.memory_limit),
      endpoint_({.host = options.host, .secret = options.secret}) {
  self_.set_number(options.number);
  self_.set_task(options.task.to_string());
  self_.set_address(endpoint_.address().to_string());
  self_.set_local_name(endpoint_.local_name());
  if (memory_.is_shared()) self_.set_host_identity(Host::local().identity);
  threads_.run([this] { accept_links(); });
}

Worker::~Worker() {
  stop();
}

void Worker::stop() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    for (const auto& [name, link] : outgoing_) link->end();
    for (const auto& incoming : incoming_) {
      if (const auto link = incoming.lock()) link->end();
    }
    const StepStatus reason = {StepStatus::Code::kAborted, fmt::format("{} is being stopped", self_.task())};
    for (const auto& [step, running] : running_) rendezvous_.abort(step, reason);
    for (const auto& [session, transfers] : sessions_) {
      for (const uint64_t transfer : transfers) rendezvous_.abort(transfer, reason);
    }
  }
  threads_.stop();
}

void Worker::accept_links() {
  const auto check = [this] {
    const MutexLock lock(mutex_);
    if (stopping_) throw Aborted("stopping");
  };
  while (true) {
    try {
      auto [name, connection] = endpoint_.accept_any("runtime/", Deadline::never(), check);
      const MutexLock lock(mutex_);
      if (stopping_) return;
      // Shared for want of functions that only move.
      threads_.run([this, name = name, taken = std::make_shared<Connection>(std::move(connection))] {
        open(name, std::move(*taken));
      });
    } catch (const Aborted&) {
      return;
    } catch (const Error& error) {
      log_warning("a data link of {} was not made: {}", self_.task(), error.what());
    }
  }
}

void Worker::open(const std::string& name, Connection connection) {
  std::shared_ptr<StepLink> link;
  try {
    StepLink::Options options{.memory = &memory_};
    const bool is_shared = name.starts_with(std::string(kClientChannel) + kShared) ||
                           name.starts_with(std::string(kPeerChannel) + kShared);
    if (is_shared)
      options.shared = SharedValues::exchange(connection, memory_, Deadline::after(kConnectTimeout), [this] {
        const MutexLock lock(mutex_);
        if (stopping_) throw Aborted("stopping");
      });
    link = std::make_shared<StepLink>(std::move(connection), std::move(options));
  } catch (const PeerLost&) {
    return;
  } catch (const Aborted&) {
    return;
  } catch (const Error& error) {
    log_warning("a data link of {} was not made: {}", self_.task(), error.what());
    return;
  }
  {
    const MutexLock lock(mutex_);
    if (stopping_) return;
    std::erase_if(incoming_, [](const auto& other) { return other.expired(); });
    incoming_.push_back(link);
  }
  read(link, name);
}

void Worker::read(const std::shared_ptr<StepLink>& link, const std::string& name) {
  const bool is_client = name.starts_with(kClientChannel);
  try {
    while (true) {
      StepFrame frame = link->receive();
      switch (frame.kind) {
        case StepFrame::Kind::kValue:
          if (!frame.status.ok()) {
            rendezvous_.abort(frame.step, {frame.status.code, fmt::format("{} was to take a value: {}",
                                                                          self_.task(), frame.status.text)});
          } else if (is_client && frame.handle == 0) {
            if (!frame.value.isTensor()) raise<InvalidArgument>("a feed is no tensor");
            const MutexLock lock(mutex_);
            feeds_[link.get()][frame.step][frame.key] = std::move(frame.value).toTensor();
          } else {
            rendezvous_.put(frame.step, frame.key, std::move(frame.value));
          }
          break;
        case StepFrame::Kind::kRun: {
          std::map<uint32_t, at::Tensor> feeds;
          {
            const MutexLock lock(mutex_);
            if (stopping_) return;
            auto& mine = feeds_[link.get()];
            if (const auto found = mine.find(frame.step); found != mine.end()) {
              feeds = std::move(found->second);
              mine.erase(found);
            }
            running_[frame.step].link = link.get();
          }
          threads_.run([this, link, name] { read(link, name); });
          run_step(link, frame, std::move(feeds));
          return;
        }
        case StepFrame::Kind::kAbort:
          rendezvous_.abort(frame.step, {StepStatus::Code::kAborted, frame.text});
          forget_feeds(link, frame.step);
          break;
        case StepFrame::Kind::kDone:
          raise<InvalidArgument>("a task is told that a step is done");
      }
    }
  } catch (const PeerLost&) {
    // It has gone; or this task is being stopped.
  } catch (const std::exception& error) {
    log_warning("a data link to {} is closed: {}", self_.task(), text_without_stack(error));
    link->end();
  }
  // What it asked for and nobody waits for any more.
  const MutexLock lock(mutex_);
  feeds_.erase(link.get());
  for (const auto& [step, running] : running_) {
    if (running.link == link.get())
      rendezvous_.abort(step, {StepStatus::Code::kAborted, "the client has gone"});
  }
}

void Worker::forget_feeds(const std::shared_ptr<StepLink>& link, uint64_t step) {
  const MutexLock lock(mutex_);
  if (const auto found = feeds_.find(link.get()); found != feeds_.end()) found->second.erase(step);
}

void Worker::run_step(const std::shared_ptr<StepLink>& link, const StepFrame& request,
                      std::map<uint32_t, at::Tensor> feeds) {
  StepStatus status;
  std::shared_ptr<Registered> part;
  try {
    {
      const MutexLock lock(mutex_);
      const auto found = registered_.find(request.handle);
      if (found == registered_.end())
        raise<PeerLost>("{} does not know what it is to run: it, or the session's master, was started again",
                        self_.task());
      part = found->second;
      running_[request.step].session = part->session;
    }
    Exchange exchange(*this, *part, request.step);
    exchange.check();  // feeds may have been too large
    std::vector<at::Tensor> given;
    for (auto& [key, feed] : feeds) {
      if (key != given.size()) raise<InvalidArgument>("the feeds of a step are not complete");
      given.push_back(std::move(feed));
    }
    const bool is_noted = request.key == static_cast<uint32_t>(Noting::kTimes);
    std::vector<NodeTime> times;
    auto results = part->executor->run(given, &exchange, is_noted ? &times : nullptr);
    if (is_noted) results.push_back(pack_times(to_proto(part->executor->program(), times)));
    // A client that takes nothing any more holds this thread until it counts as gone.
    const auto check = [this, &part] {
      const MutexLock lock(mutex_);
      check_session(part->session);
    };
    for (uint32_t i = 0; i < results.size(); ++i)
      link->send({.kind = StepFrame::Kind::kValue, .key = i, .step = request.step, .value = results[i]},
                 check);
  } catch (const std::exception& error) {
    status = StepStatus::of(error);
    if (part) part->container->replicas().end_run(request.step);
  }
  try {
    link->send({.kind = StepFrame::Kind::kDone,
                .key = static_cast<uint32_t>(status.code),
                .step = request.step,
                .text = status.text});
  } catch (const Error&) {
    // Nobody is there to hear of it.
  }
  rendezvous_.end(request.step, !status.ok());
  const MutexLock lock(mutex_);
  running_.erase(request.step);
}

std::shared_ptr<StepLink> Worker::link_to(const runtime::Peer& peer, const StepLink::Check& check) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) throw Aborted("stopping");
    const auto found = outgoing_.find(peer.local_name());
    if (found != outgoing_.end() && !found->second->is_closed()) return found->second;
    // What was lent to a task that has gone, or was started again, comes back with its link.
    std::erase_if(outgoing_, [](const auto& other) { return other.second->is_closed(); });
  }
  auto link =
      connect_to(endpoint_, memory_, peer,
                 {.kind = kPeerChannel, .deadline = Deadline::after(kConnectTimeout), .check = check});
  const MutexLock lock(mutex_);
  if (stopping_) throw Aborted("stopping");
  // Whoever was faster: values of one step may go over two links.
  return outgoing_.emplace(peer.local_name(), std::move(link)).first->second;
}

void Worker::take_back() {
  memory_.take_back();
  const MutexLock lock(mutex_);
  for (const auto& [name, link] : outgoing_) link->take_back();
  for (const auto& incoming : incoming_) {
    if (const auto link = incoming.lock()) link->take_back();
  }
}

void Worker::expect_part(uint64_t session, uint64_t transfer) {
  const MutexLock lock(mutex_);
  if (stopping_) return;
  sessions_[session].insert(transfer);
}

void Worker::check_session(uint64_t session) const {
  if (stopping_ || !sessions_.contains(session)) throw Aborted("the session has ended");
}

void Worker::add_part(uint64_t session, const runtime::Register& request, Deadline deadline) {
  const Graph graph = receive_graph(request.transfer(), rendezvous_, deadline);
  const Signature signature = signature_of(request.signature(), graph);
  auto part = std::make_shared<Registered>();
  part->session = session;
  for (const auto& peer : request.peers()) part->peers.emplace(peer.number(), peer);
  {
    const MutexLock lock(mutex_);
    check_session(session);
    sessions_.at(session).erase(request.transfer());
    auto& container = request.is_private() ? private_containers_[session] : containers_[request.container()];
    if (!container) container = std::make_shared<Container>();
    part->container = container;
  }
  auto program =
      std::make_shared<Program>(signature, *part->container,
                                CompileOptions{.fold_constants = request.fold_constants(),
                                               .share_subexpressions = request.share_subexpressions(),
                                               .join_gradients = request.join_gradients(),
                                               .session = session});
  for (const auto& sent : program->sent) {
    if (!part->peers.contains(sent.task))
      raise<InvalidArgument>("a part of a graph sends to task {}, which it is not told of", sent.task);
  }
  part->executor = std::make_unique<Executor>(std::move(program), &memory_.tensors());
  const MutexLock lock(mutex_);
  check_session(session);
  registered_[request.handle()] = std::move(part);
}

void Worker::end_session(uint64_t session) {
  std::set<std::shared_ptr<Container>> containers;  // that it has used
  {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return;  // a client's, of the master
    for (const uint64_t transfer : found->second)
      rendezvous_.abort(transfer, {StepStatus::Code::kAborted, "the session has ended"});
    sessions_.erase(found);
    for (const auto& [step, running] : running_) {
      if (running.session == session)
        rendezvous_.abort(step, {StepStatus::Code::kPeerLost,
                                 "the session has ended: its master, or the client, has gone"});
    }
    std::erase_if(registered_, [&](const auto& entry) {
      if (entry.second->session != session) return false;
      containers.insert(entry.second->container);
      return true;
    });
    private_containers_.erase(session);
  }
  for (const auto& container : containers) container->replicas().end_session(session);
}

}  // namespace muster::detail
