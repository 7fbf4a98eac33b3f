#include "muster/ps/server/followers.h"

#include "muster/base/error.h"
#include "muster/ps/server/command_link.h"
#include "muster/ps/session_protocol.h"

namespace muster::detail {

void Followers::reach() {
  for (int server = 1; server < options_.servers; ++server) {
    const auto deadline = Deadline::after(options_.join_timeout);
    const ServerAddress where = options_.find_server(server, deadline);
    const auto connect = [&](const std::string& channel_name) {
      return where.local_name.empty()
                 ? options_.endpoint.connect(where.address, channel_name, deadline)
                 : options_.endpoint.connect_local(where.local_name, channel_name, deadline);
    };
    Follower follower = {.commands = connect(command_channel_name(options_.job_id, options_.model_id))};
    if (options_.adds_up_norms) follower.sums = connect(sum_channel_name(options_.job_id, options_.model_id));
    followers_.push_back(std::move(follower));
  }
}

void Followers::raise_gone(const Follower& follower, const std::string& why) const {
  raise<DataLoss>(
      "parameter server {} is gone, and its parameters with it: there is no checkpoint to restore them from "
      "({})",
      1 + (&follower - followers_.data()), why);
}

void Followers::send(const Command& command) {
  for (Follower& follower : followers_) {
    try {
      send_command(follower.commands, command, options_.check);
    } catch (const PeerLost& error) {
      raise_gone(follower, error.what());
    }
  }
}

void Followers::add_up(std::span<double> numbers) {
  ++sums_;
  received_.resize(numbers.size());
  for (Follower& follower : followers_) {
    try {
      receive_numbers(follower.sums, sums_, received_, options_.check);
    } catch (const PeerLost& error) {
      raise_gone(follower, error.what());
    }
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] += received_[i];
  }
  for (Follower& follower : followers_) {
    try {
      send_numbers(follower.sums, sums_, numbers, options_.check);
    } catch (const PeerLost& error) {
      raise_gone(follower, error.what());
    }
  }
}

// One that lost its link has lost a command, perhaps; the next would tell, but there may be none.
void Followers::check_links() const {
  for (const Follower& follower : followers_) {
    if (follower.commands.is_closed()) raise_gone(follower, "its link closed");
  }
}

}  // namespace muster::detail
