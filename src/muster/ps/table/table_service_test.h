#pragma once

// What the tests of the table service and of its client share: servers as objects of one process.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/net/endpoint.h"
#include "muster/ps/table/table_client.h"
#include "muster/ps/table/table_service.h"

namespace muster::detail::testing {

inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

template <typename E>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

/// Servers with tables, and what a worker needs to reach them.
struct TableServers {
  explicit TableServers(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      endpoints.push_back(std::make_shared<Endpoint>(Endpoint::Options{.secret = "s"}));
      services.push_back(std::make_unique<TableService>(endpoints.back(), "job"));
      addresses.push_back({endpoints.back()->address(), endpoints.back()->local_name()});
    }
  }

  TableClientOptions options(int worker = 0) const {
    return {.endpoint = worker_endpoint, .servers = addresses, .job_id = "job", .worker = worker};
  }

  std::vector<std::shared_ptr<Endpoint>> endpoints;
  std::vector<std::unique_ptr<TableService>> services;
  std::vector<ServerAddress> addresses;
  std::shared_ptr<Endpoint> worker_endpoint = std::make_shared<Endpoint>(Endpoint::Options{.secret = "s"});
};

/// From zeros, row -= gradient: what a row holds is minus the sum of what was pushed, exactly for whole
// numbers.
inline TableOptions sums(size_t width = 2) {
  return {.name = "sums", .width = width, .rule = row_rule(sgd({.lr = 1})), .scale = 0};
}

inline std::vector<float> pull(TableClient& client, const TableOptions& table,
                               const std::vector<int64_t>& ids) {
  std::vector<float> rows(ids.size() * table.width);
  client.pull(table.name, ids, rows.data());
  return rows;
}

}  // namespace muster::detail::testing
