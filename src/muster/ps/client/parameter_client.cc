#include "muster/ps/client/parameter_client.h"

#include <algorithm>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "muster/base/copy.h"
#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/log.h"

namespace muster::detail {
namespace {

constexpr auto kBetweenTries = std::chrono::milliseconds(100);

}  // namespace

ParameterClient::ParameterClient(Options options)
    : options_(std::move(options)),
      placement_(options_.spec.variables, options_.spec.servers, options_.spec.placement),
      arena_(Arena::create()),
      is_main_(options_.waits != nullptr && options_.waits->is_main()),
      servers_(static_cast<size_t>(options_.spec.servers)),
      delivered_(options_.spec.variables.size(), nullptr),
      staging_buffers_(options_.spec.variables.size()) {
  const auto deadline = Deadline::after(options_.join_timeout);
  for (size_t i = 0; i < servers_.size(); ++i) {
    connect_first(i, deadline);
    servers_[i].instance = servers_[i].channel->welcome().instance;
  }
  const auto away = [](const Server& server) { return server.channel->parameters() == nullptr; };
  if (servers_.size() > 1 && std::all_of(servers_.begin(), servers_.end(), away))
    pool_ = std::make_unique<ThreadPool>(static_cast<int>(servers_.size()));
}

ParameterClient::~ParameterClient() = default;

// A server that is there and refuses stays with it; one that is gone may come back.
void ParameterClient::connect_first(size_t server, Deadline deadline) {
  std::optional<Deadline> back_by;
  for (;;) {
    try {
      return connect(server, deadline);
    } catch (const Refused& error) {
      raise<Refused>("parameter server {}: {}", server, error.what());
    } catch (const PeerLost& error) {
      options_.check();
      if (!back_by) {
        say_gone(server, error.what());
        back_by = Deadline::after(options_.server_wait).earlier(deadline);
      }
      if (back_by->expired()) raise<PeerLost>("parameter server {} is gone: {}", server, error.what());
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

void ParameterClient::say_gone(size_t server, const std::string& why) const {
  log_warning("parameter server {} is gone ({}): waiting for it, up to {}", server, why,
              format_seconds(options_.server_wait));
}

void ParameterClient::connect(size_t server, Deadline deadline) {
  const int index = static_cast<int>(server);
  servers_[server].channel.reset();
  servers_[server].channel = open_channel(
      {.endpoint = options_.endpoint,
       .arena = arena_,
       .server = options_.find_server(index, deadline),
       .job_id = options_.job_id,
       .model_id = options_.model_id,
       .spec = options_.spec,
       .layout = placement_.layout(index),
       .index = index,
       .worker = options_.worker,
       .incarnation = options_.incarnation,
       .sockets = options_.sockets,
       .encrypted = options_.encrypted,
       .spin_policy = SpinPolicy::of(options_.spec.policy.workers + options_.spec.servers, available_cores()),
       .check = [this, index] { check(index); }},
      deadline);
}

void ParameterClient::check(int server) const {
  options_.check();
  if (options_.has_failed && options_.has_failed(server))
    raise<PeerLost>("ps/{} has failed: it said nothing for --heartbeat-timeout, or its process ended",
                    server);
}

// After a server did not come back there is no channel to it.
void ParameterClient::check_reached(size_t server) const {
  if (!servers_[server].channel) raise<PeerLost>("parameter server {} is gone", server);
}

// Does it, if need be with a new channel.
template <typename Action>
void ParameterClient::with(size_t server, const Action& action) {
  check_reached(server);
  ScopedWait wait(options_.waits, [&] {
    const std::string name = fmt::format("ps/{}", server);
    return WaitFor{.what = fmt::format("an answer of {}", name),
                   .tasks = {name},
                   .subject = model_subject(options_.model_id)};
  });
  if (is_main_) wait.set_main();  // others pull for it
  for (;;) {
    try {
      return action(*servers_[server].channel);
    } catch (const PeerLost& error) {
      reconnect(server, error.what());
    }
  }
}

void ParameterClient::reconnect(size_t server, const std::string& why) {
  say_gone(server, why);
  const auto deadline = Deadline::after(options_.server_wait);
  for (;;) {
    options_.check();
    try {
      connect(server, deadline);
      break;
    } catch (const Refused& error) {
      raise<Aborted>("parameter server {}: {}", server, error.what());
    } catch (const Error& error) {
      options_.check();
      if (deadline.expired())
        raise<PeerLost>("parameter server {} did not come back within {}: {}", server,
                        format_seconds(options_.server_wait), error.what());
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
  const Welcome& welcome = servers_[server].channel->welcome();
  if (welcome.instance != servers_[server].instance)
    raise<DataLoss>(
        "parameter server {} was started again without its parameters: there is no checkpoint "
        "to restore them from",
        server);
  log_info("parameter server {} is back", server);
  if (welcome.posted >= servers_[server].asked) return;
  try {
    repeat(server);
  } catch (const PeerLost&) {
    // Whoever uses it next finds out.
  }
}

// The last request has not reached it, and with it perhaps the gradients.
void ParameterClient::repeat(size_t server) {
  Server& to = servers_[server];
  if (to.request.kind == Request::Kind::kPush || to.request.kind == Request::Kind::kData ||
      to.request.kind == Request::Kind::kInitialise) {
    const auto& slices = placement_.layout(static_cast<int>(server)).slices();
    for (size_t i = 0; i < slices.size(); ++i)
      to.channel->deliver(i, to.request.push.sequence, part_of(slices[i], delivered_[slices[i].parameter]));
  }
  to.channel->post(to.asked, to.request);
}

std::shared_ptr<void> ParameterClient::allocate(size_t bytes) {
  return {arena_->allocate(bytes), [arena = arena_](void* data) { arena->free(data); }};
}

// Servers of this host read what lies in the arena.
const void* ParameterClient::reachable(size_t variable, const void* data) {
  const size_t bytes = placement_.variables()[variable].bytes();
  const auto here = [](const Server& server) { return server.channel && server.channel->parameters(); };
  if (arena_->contains(data, bytes) || std::none_of(servers_.begin(), servers_.end(), here)) return data;
  if (!staging_buffers_[variable]) staging_buffers_[variable] = allocate(bytes);
  copy_bytes(staging_buffers_[variable].get(), data, bytes);
  return staging_buffers_[variable].get();
}

const void* ParameterClient::part_of(const Slice& slice, const void* variable) const {
  if (variable == nullptr) return nullptr;
  return static_cast<const std::byte*>(variable) +
         slice.begin * size_of(placement_.variables()[slice.parameter].dtype);
}

void ParameterClient::deliver(size_t variable, const void* gradient) {
  wait_consumed();
  delivered_[variable] = gradient == nullptr ? nullptr : reachable(variable, gradient);
  if (gradient == nullptr) return;
  for (size_t server = 0; server < servers_.size(); ++server) {
    const auto& slices = placement_.layout(static_cast<int>(server)).slices();
    const auto found = std::ranges::lower_bound(slices, variable, {}, &Slice::parameter);
    if (found == slices.end() || found->parameter != variable) continue;
    try {
      check_reached(server);
      servers_[server].channel->deliver(static_cast<size_t>(found - slices.begin()), sequence_,
                                        part_of(*found, delivered_[variable]));
    } catch (const PeerLost&) {
      // The push finds out, and says everything again.
    }
  }
}

// The leader last: what it lets others do, they may do at all.
void ParameterClient::tell_all(const Request& request) {
  for (size_t i = servers_.size(); i-- > 0;) tell(i, request);
}

// Asks for nothing but that it is taken.
void ParameterClient::tell(size_t server, const Request& request) {
  Server& to = servers_[server];
  to.request = request;
  ++to.asked;
  with(server, [&](Channel& channel) {
    if (channel.welcome().posted < to.asked) channel.post(to.asked, request);
    channel.wait_reply(to.asked);
  });
}

void ParameterClient::initialise(std::span<const void* const> variables) {
  for (size_t i = 0; i < variables.size(); ++i) deliver(i, variables[i]);
  tell_all({.kind = Request::Kind::kInitialise, .push = {.sequence = sequence_}});
  unconsumed_ = sequence_++;
  wait_consumed();
  std::fill(delivered_.begin(), delivered_.end(), nullptr);
}

Reply ParameterClient::ask(Request request) {
  post(request);
  return wait_reply();
}

void ParameterClient::post(Request request) {
  Server& leader = servers_.front();
  request.pull = 1;
  leader.request = request;
  ++leader.asked;
  bool posted = false;
  with(0, [&](Channel& channel) {
    if (!posted) channel.post(leader.asked, request);
    posted = true;
  });
}

// When the link breaks, reconnect() has posted the request again.
Reply ParameterClient::wait_reply() {
  Reply reply;
  with(0, [&](Channel& channel) { reply = channel.wait_reply(servers_.front().asked); });
  pulled_with_reply_ = reply.kind != Reply::Kind::kTaken;
  return reply;
}

Reply ParameterClient::enter() {
  return ask({.kind = Request::Kind::kEnter});
}

// The leader decides only on what all followers have: an update is whole on all servers or on none.
Reply ParameterClient::push(Push push) {
  push.sequence = sequence_;
  for (size_t i = 1; i < servers_.size(); ++i) {
    Server& follower = servers_[i];
    follower.request = {.kind = Request::Kind::kData, .push = push};
    ++follower.asked;
    bool posted = false;
    with(i, [&](Channel& channel) {
      if (!posted) channel.post(follower.asked, follower.request);
      posted = true;
    });
  }
  for (size_t i = 1; i < servers_.size(); ++i)
    with(i, [&](Channel& channel) { channel.wait_reply(servers_[i].asked); });
  const Reply reply = ask({.kind = Request::Kind::kPush, .push = push});
  unconsumed_ = sequence_++;
  std::fill(delivered_.begin(), delivered_.end(), nullptr);
  return reply;
}

void ParameterClient::wait_consumed() {
  if (unconsumed_ == 0) return;
  for (size_t i = 0; i < servers_.size(); ++i)
    with(i, [&](Channel& channel) { channel.wait_consumed(unconsumed_); });
  unconsumed_ = 0;
}

Reply ParameterClient::finish_epoch() {
  return ask({.kind = Request::Kind::kFinishEpoch});
}

void ParameterClient::post_finish_epoch() {
  post({.kind = Request::Kind::kFinishEpoch});
}

Reply ParameterClient::wait_next_epoch() {
  return wait_reply();
}

void ParameterClient::away() {
  tell(0, {.kind = Request::Kind::kAway});
}

void ParameterClient::back() {
  tell(0, {.kind = Request::Kind::kBack});
}

Reply ParameterClient::resume() {
  return ask({.kind = Request::Kind::kResume});
}

void ParameterClient::leave() {
  tell_all({.kind = Request::Kind::kLeave});
}

int64_t ParameterClient::pull_from(size_t server, int64_t at_least, std::span<void* const> variables,
                                   bool asked) {
  auto& slices = servers_[server].slices;
  slices.clear();
  for (const auto& slice : placement_.layout(static_cast<int>(server)).slices())
    slices.push_back(const_cast<void*>(part_of(slice, variables[slice.parameter])));
  int64_t version = at_least;
  with(server,
       [&](Channel& channel) { version = channel.pull(at_least, slices, std::exchange(asked, false)); });
  return version;
}

int64_t ParameterClient::pull(int64_t at_least, std::span<void* const> variables) {
  const bool asked = std::exchange(pulled_with_reply_, false);
  std::vector<int64_t> versions(servers_.size(), at_least);
  std::vector<std::exception_ptr> errors(servers_.size());
  const auto pull_one = [&](size_t server) {
    try {
      versions[server] = pull_from(server, at_least, variables, asked && server == 0);
    } catch (...) {
      errors[server] = std::current_exception();
    }
  };
  if (pool_) {
    pool_->run(servers_.size(), pull_one);
  } else {
    for (size_t server = 0; server < servers_.size(); ++server) pull_one(server);
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  wait_consumed();
  return versions.front();
}

void ParameterClient::wait_version(int64_t at_least) {
  with(0, [&](Channel& channel) { channel.wait_version(at_least); });
  wait_consumed();
}

std::shared_ptr<const std::byte> ParameterClient::parameters() const {
  if (servers_.size() > 1) return nullptr;
  check_reached(0);
  return servers_.front().channel->parameters();
}

}  // namespace muster::detail
