#include "muster/ps/table/table_client.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "muster/base/copy.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/ps/table/row_ids.h"
#include "muster/ps/table/table_protocol.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

constexpr auto kRetryEvery = 50ms;

}  // namespace

// The ids of a batch that are on one server, and where they stand in the batch.
struct TableClient::ServerIds {
  std::vector<int64_t> ids;
  std::vector<size_t> position;
};

// To one server, and what it answered.
struct TableClient::Request {
  Request(size_t to, RequestHead head, const std::string& name, const std::string& text = "") : server(to) {
    head.name_length = static_cast<uint16_t>(name.size());
    head.text_length = static_cast<uint32_t>(text.size());
    check_head(head);
    bytes.resize(sizeof(head) + body_bytes(head));
    std::memcpy(bytes.data(), &head, sizeof(head));
    char* end = reinterpret_cast<char*>(bytes.data() + bytes.size());
    std::copy(text.begin(), text.end(), end - text.size());
    std::copy(name.begin(), name.end(), end - text.size() - name.size());
  }

  int64_t* ids() { return reinterpret_cast<int64_t*>(bytes.data() + sizeof(RequestHead)); }

  size_t server;
  std::vector<std::byte> bytes;
  std::vector<std::byte> answer;  // as large as it will be
  std::string refusal;
  bool sent = false;
  bool done = false;
};

TableClient::TableClient(TableClientOptions options)
    : options_(std::move(options)), client_(random_number()) {
  if (options_.endpoint == nullptr) raise<InvalidArgument>("a client of tables needs an endpoint");
  if (options_.servers.empty())
    raise<InvalidArgument>("tables are on parameter servers, and this job has none; start it with --ps");
  if (options_.worker < 0 || options_.incarnation < 0)
    raise<InvalidArgument>("worker/{}, incarnation {}; expected numbers from 0", options_.worker,
                           options_.incarnation);
  for (const ServerAddress& where : options_.servers) servers_.push_back({where, {}});
}

TableClient::~TableClient() {
  for (Server& server : servers_) {
    if (!server.connection) continue;
    try {
      const RequestHead head = {.kind = TableRequest::kClose};
      server.connection.send(&head, sizeof(head), Deadline::after(1s));
    } catch (const Error& error) {
      log_debug("no farewell to {}: {}", name_of(server), error.what());
    }
  }
}

std::string TableClient::name_of(const Server& server) const {
  return fmt::format("server {} ({})", &server - servers_.data(), server.where.address.to_string());
}

size_t TableClient::width_of(const std::string& table) const {
  const auto found = widths_.find(table);
  if (found == widths_.end())
    raise<InvalidArgument>("table '{}' is not known to this worker; create it first", table);
  return found->second;
}

void TableClient::create(const TableOptions& table) {
  const Table valid(table);  // throws here rather than on every server
  if (table.name.size() > kLongestTableName)
    raise<InvalidArgument>("a table's name of {} bytes; expected at most {}", table.name.size(),
                           kLongestTableName);
  const MutexLock lock(mutex_);
  std::vector<Request> requests;
  for (size_t server = 0; server < servers_.size(); ++server) {
    const RequestHead head = {.kind = TableRequest::kCreate,
                              .width = static_cast<uint32_t>(table.width),
                              .scale = table.scale,
                              .seed = table.seed};
    requests.emplace_back(server, head, table.name, table.rule->to_string());
  }
  run(requests);
  widths_[table.name] = table.width;
}

// By server.
std::vector<TableClient::ServerIds> TableClient::split(std::span<const int64_t> ids) const {
  std::vector<ServerIds> by_server(servers_.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    ServerIds& on_server = by_server[server_of(ids[i], servers_.size())];
    on_server.ids.push_back(ids[i]);
    on_server.position.push_back(i);
  }
  return by_server;
}

void TableClient::pull(const std::string& table, std::span<const int64_t> ids, float* rows) {
  const MutexLock lock(mutex_);
  const size_t width = width_of(table);
  const UniqueIds unique(ids);
  const auto by_server = split(unique.ids);
  std::vector<Request> requests;
  for (size_t server = 0; server < by_server.size(); ++server) {
    const size_t count = by_server[server].ids.size();
    if (count == 0) continue;
    const RequestHead head = {.kind = TableRequest::kPull,
                              .width = static_cast<uint32_t>(width),
                              .count = static_cast<uint32_t>(count)};
    Request& request = requests.emplace_back(server, head, table);
    std::copy(by_server[server].ids.begin(), by_server[server].ids.end(), request.ids());
    request.answer.resize(count * width * sizeof(float));
  }
  run(requests);
  std::vector<const std::byte*> found(unique.ids.size());
  for (const Request& request : requests) {
    const std::byte* row = request.answer.data();
    for (const size_t position : by_server[request.server].position) {
      found[position] = row;
      row += width * sizeof(float);
    }
  }
  for (size_t i = 0; i < ids.size(); ++i)
    copy_bytes(rows + i * width, found[unique.position[i]], width * sizeof(float));
}

void TableClient::push(const std::string& table, std::span<const int64_t> ids, const float* gradients) {
  const MutexLock lock(mutex_);
  const size_t width = width_of(table);
  const UniqueIds unique(ids);
  const std::vector<float> sums = unique.add_up(gradients, width);
  const auto by_server = split(unique.ids);
  std::vector<Request> requests;
  ++sequence_;
  for (size_t server = 0; server < by_server.size(); ++server) {
    const ServerIds& on_server = by_server[server];
    if (on_server.ids.empty()) continue;
    const RequestHead head = {.kind = TableRequest::kPush,
                              .width = static_cast<uint32_t>(width),
                              .count = static_cast<uint32_t>(on_server.ids.size()),
                              .worker = static_cast<uint32_t>(options_.worker),
                              .incarnation = static_cast<uint32_t>(options_.incarnation),
                              .client = client_,
                              .sequence = sequence_};
    Request& request = requests.emplace_back(server, head, table);
    std::copy(on_server.ids.begin(), on_server.ids.end(), request.ids());
    auto* to = reinterpret_cast<float*>(request.ids() + on_server.ids.size());
    for (size_t i = 0; i < on_server.ids.size(); ++i)
      copy_bytes(to + i * width, sums.data() + on_server.position[i] * width, width * sizeof(float));
  }
  run(requests);
}

TableSize TableClient::size(const std::string& table) {
  const MutexLock lock(mutex_);
  width_of(table);
  std::vector<Request> requests;
  for (size_t server = 0; server < servers_.size(); ++server) {
    requests.emplace_back(server, RequestHead{.kind = TableRequest::kSize}, table)
        .answer.resize(sizeof(TableSize));
  }
  run(requests);
  TableSize sum;
  for (const Request& request : requests) {
    TableSize size;
    std::memcpy(&size, request.answer.data(), sizeof(size));
    sum.rows += size.rows;
    sum.bytes += size.bytes;
  }
  return sum;
}

// Sends all, then receives all. Afterwards no connection has an answer on its way.
void TableClient::run(std::vector<Request>& requests) {
  try {
    for (Request& request : requests) {
      try {
        send(request);
      } catch (const PeerLost&) {  // finish() tries again
        servers_[request.server].connection = Connection();
      } catch (const DeadlineExceeded&) {
        servers_[request.server].connection = Connection();
      }
    }
    for (Request& request : requests) finish(request);
  } catch (...) {
    for (const Request& request : requests) {
      if (!request.done) servers_[request.server].connection = Connection();
    }
    throw;
  }
  for (const Request& request : requests) {
    if (!request.refusal.empty())
      raise<Refused>("{}: {}", name_of(servers_[request.server]), request.refusal);
  }
}

void TableClient::check(size_t server) const {
  if (options_.check) options_.check();
  if (options_.has_failed && options_.has_failed(static_cast<int>(server)))
    raise<PeerLost>("ps/{} has failed: it said nothing for --heartbeat-timeout, or its process ended",
                    server);
}

void TableClient::send(Request& request) {
  Server& server = servers_[request.server];
  if (!server.connection) {
    const std::string channel_name = fmt::format("tables/{}/{}", options_.job_id, options_.worker);
    const Deadline deadline = Deadline::after(std::min(options_.timeout, options_.server_wait));
    try {
      Endpoint& endpoint = *options_.endpoint;
      server.connection = server.where.local_name.empty()
                              ? endpoint.connect(server.where.address, channel_name, deadline)
                              : endpoint.connect_local(server.where.local_name, channel_name, deadline);
    } catch (const Error& error) {
      throw PeerLost(error.what());
    }
  }
  server.connection.send(request.bytes.data(), request.bytes.size(), Deadline::after(options_.timeout),
                         [&] { check(request.server); });
  request.sent = true;
}

void TableClient::receive(Request& request) {
  Connection& connection = servers_[request.server].connection;
  const Deadline deadline = Deadline::after(options_.timeout);
  const auto look = [&] { check(request.server); };
  AnswerHead head;
  connection.receive(&head, sizeof(head), deadline, look);
  if (head.magic != kTableAnswer ||
      (head.refused != 0 ? head.bytes > kLongestReason : head.bytes != request.answer.size()))
    raise<PeerLost>("it does not speak our protocol");
  if (head.refused != 0) request.answer.resize(head.bytes);
  connection.receive(request.answer.data(), request.answer.size(), deadline, look);
  if (head.refused != 0)
    request.refusal.assign(reinterpret_cast<const char*>(request.answer.data()), request.answer.size());
  request.done = true;
}

// Receives the answer; when the connection breaks, sends the request again, until server_wait has passed.
void TableClient::finish(Request& request) {
  Server& server = servers_[request.server];
  const ScopedWait wait(options_.waits, [&] {
    return WaitFor{.what = fmt::format("embedding tables of ps/{}", request.server),
                   .tasks = {fmt::format("ps/{}", request.server)},
                   .subject = "tables",
                   .limit = WaitLimit::kOwn};
  });
  std::optional<Deadline> give_up;  // set by the first error
  while (!request.done) {
    try {
      if (!request.sent) send(request);
      receive(request);
    } catch (const PeerLost& error) {
      server.connection = Connection();
      request.sent = false;
      if (options_.check) options_.check();
      if (!give_up) {  // at once: it may be the connection only
        log_warning("{} is gone, trying again for {}: {}", name_of(server),
                    format_seconds(options_.server_wait), error.what());
        give_up = Deadline::after(options_.server_wait);
        continue;
      }
      if (give_up->expired())
        raise<PeerLost>("{} can't be reached since {}: {}", name_of(server),
                        format_seconds(options_.server_wait), error.what());
      std::this_thread::sleep_for(kRetryEvery);
    } catch (const DeadlineExceeded& error) {
      raise<DeadlineExceeded>("{} did not answer within {}: {}", name_of(server),
                              format_seconds(options_.timeout), error.what());
    }
  }
}

}  // namespace muster::detail
