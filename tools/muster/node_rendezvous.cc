#include "muster/node_rendezvous.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/net/interface.h"

namespace muster::detail {
namespace {

constexpr auto kReminderInterval = std::chrono::seconds(3);

std::string node_key(int node) {
  return fmt::format("muster/node/{}", node);
}

// "h1:2222" or "[fd00::1]:2222"; or "h1" or "fd00::1", whose port is still to be found.
Address coordinator_address(const std::string& text) {
  if (text.empty()) return {"127.0.0.1", 0};
  const auto colons = std::count(text.begin(), text.end(), ':');
  const bool has_port = text.starts_with('[') || colons == 1;
  return has_port ? Address::parse(text) : Address{text, 0};
}

}  // namespace

NodeRendezvous::NodeRendezvous(Options options) : options_(std::move(options)), config_(options_.config) {
  const bool several = options_.spec.nodes > 1;
  if (config_.job_id.empty()) config_.job_id = several ? "muster" : random_token();
  if (config_.secret.empty()) {
    config_.secret = several ? "without a secret: " + config_.job_id : random_token();
    if (several) {
      log_warning(
          "the job has no secret: whoever can reach the coordinator can enter it; set MUSTER_SECRET to the "
          "same text on every node");
    }
  }
  Address address = coordinator_address(config_.coordinator);
  // Without a port, all nodes know by the job's id where node 0 may listen.
  std::vector<Address> addresses = {address};
  if (several && address.port == 0) addresses = derived_addresses(address.host, config_.job_id);
  if (options_.node == 0) {
    std::vector<Address> listen = addresses;
    for (auto& each : listen) {
      // A name may resolve to a loopback address on its own host, where nobody else would find us.
      if (!is_loopback(each.host)) each.host = "::";
    }
    coordinator_ =
        std::make_unique<Coordinator>(Coordinator::Options{.listen = listen,
                                                           .job_id = config_.job_id,
                                                           .secret = config_.secret,
                                                           .tasks = options_.spec.tasks(),
                                                           .heartbeat_timeout = config_.heartbeat_timeout,
                                                           .failure_policy = options_.failure_policy,
                                                           .restarts = options_.restarts,
                                                           .logs_aborts = false,
                                                           .stall_warning = config_.stall_warning,
                                                           .wait_timeout = config_.collective_timeout});
    address.port = coordinator_->address().port;
    addresses = {address};
  }
  config_.coordinator = addresses.front().to_string();
  member_ = std::make_unique<Member>(Member::Options{.coordinator = addresses,
                                                     .job_id = config_.job_id,
                                                     .secret = config_.secret,
                                                     .task = TaskName::of("launcher", options_.node),
                                                     .tasks = options_.spec.tasks(),
                                                     .address = "",
                                                     .observer = true,
                                                     .on_ended =
                                                         [this](const Member::Ended& ended) {
                                                           if (options_.on_aborted)
                                                             options_.on_aborted(ended);
                                                         },
                                                     .on_task_failed = options_.on_task_failed},
                                     Deadline::after(config_.join_timeout));
}

NodeRendezvous::~NodeRendezvous() {
  member_.reset();
  if (coordinator_) coordinator_->wait_idle(Deadline::after(options_.grace));
}

std::string NodeRendezvous::task_host() const {
  if (!config_.interface.empty()) return choose_interface(list_interfaces(), config_.interface).address;
  if (options_.spec.nodes == 1) return "127.0.0.1";
  return address_towards(Address::parse(config_.coordinator));
}

ClusterSpec NodeRendezvous::exchange_addresses() {
  const std::string host = task_host();
  const auto& spec = options_.spec;
  nlohmann::json mine;
  mine["spec"] = fmt::format("--workers {} --ps {} --nnodes {}", spec.workers, spec.servers, spec.nodes);
  for (const auto& task : spec.tasks_of_node(options_.node)) {
    ports_.emplace_back(host);
    mine["tasks"][task.to_string()] = Address{host, ports_.back().port()}.to_string();
  }
  ports_.emplace_back(host);
  mine["master"] = Address{host, ports_.back().port()}.to_string();
  mine["coordinator"] = config_.coordinator;

  const auto deadline = Deadline::after(config_.join_timeout);
  member_->put(node_key(options_.node), mine.dump(), deadline);
  std::map<std::string, ClusterSpec::Tasks> jobs;
  for (int node = 0; node < spec.nodes; ++node) {
    const auto theirs = nlohmann::json::parse(wait_for_node(node, deadline));
    if (theirs["spec"] != mine["spec"]) {
      raise<InvalidArgument>("the nodes were started differently: node {} with {}, node {} with {}", node,
                             theirs["spec"].get<std::string>(), options_.node,
                             mine["spec"].get<std::string>());
    }
    if (node == 0) {
      master_ = Address::parse(theirs["master"].get<std::string>());
      config_.coordinator = theirs["coordinator"].get<std::string>();  // now with its port
    }
    for (const auto& [name, address] : theirs["tasks"].items()) {
      const auto task = TaskName::parse(name);
      jobs[*task.job][*task.task] = Address::parse(address.get<std::string>());
    }
  }
  return ClusterSpec(std::move(jobs));
}

std::string NodeRendezvous::wait_for_node(int node, Deadline deadline) {
  for (;;) {
    try {
      return member_->get(node_key(node), deadline.earlier(Deadline::after(kReminderInterval)));
    } catch (const DeadlineExceeded&) {
      if (deadline.expired())
        raise<DeadlineExceeded>("node {} of {} did not come within {} (--join-timeout)", node,
                                options_.spec.nodes, format_seconds(config_.join_timeout));
      log_info("still waiting for node {} of {}: is muster run started there, with --node-rank {}?", node,
               options_.spec.nodes, node);
    }
  }
}

void NodeRendezvous::abort(const std::string& reason, std::optional<TaskName> by) {
  if (coordinator_) {
    coordinator_->abort(reason, std::move(by));
  } else {
    member_->abort(reason, by);
  }
}

std::optional<Member::Ended> NodeRendezvous::aborted() const {
  const auto record = coordinator_ ? coordinator_->aborted() : std::nullopt;
  if (!record) return std::nullopt;
  return Member::Ended{.reason = "the job was aborted: " + record->reason,
                       .by = record->by,
                       .died = record->died,
                       .said = record->said};
}

bool NodeRendezvous::task_ended(const TaskName& task, const std::string& how) {
  try {
    member_->exited(task, how, Deadline::after(config_.heartbeat_timeout));
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool NodeRendezvous::wait_for_all(bool ended_well_here) {
  const auto answers =
      member_->gather("muster/launchers", ended_well_here ? "well" : "", Deadline::never(), "launcher");
  return std::find(answers.begin(), answers.end(), "well") != answers.end();
}

void NodeRendezvous::leave() {
  member_->leave(Deadline::after(config_.heartbeat_timeout));
}

}  // namespace muster::detail
