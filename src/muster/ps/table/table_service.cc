#include "muster/ps/table/table_service.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/start_thread.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

// A worker that stops in the middle of a request, or does not take an answer, for so long is dropped.

// Memory that is not cleared first: nobody pays for what a head only promises.
class Buffer {
 public:
  std::byte* reserve(size_t size) {
    if (size > size_) {
      data_ = std::make_unique_for_overwrite<std::byte[]>(size);
      size_ = size;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t size_ = 0;
};

}  // namespace

// Head and body in one buffer.
class TableService::Answer {
 public:
  std::byte* body(size_t bytes) {
    bytes_ = bytes;
    std::byte* data = buffer_.reserve(sizeof(AnswerHead) + bytes);
    set_head(data, {.bytes = bytes});
    return data + sizeof(AnswerHead);
  }

  void refuse(std::string_view reason) {
    reason = reason.substr(0, kLongestReason);
    std::byte* text = body(reason.size());
    std::memcpy(text, reason.data(), reason.size());
    set_head(text - sizeof(AnswerHead), {.refused = 1, .bytes = reason.size()});
  }

  void send(Connection& connection, const std::function<void()>& stop) {
    connection.send(buffer_.reserve(0), sizeof(AnswerHead) + bytes_, Deadline::never(), stop);
  }

 private:
  static void set_head(std::byte* to, const AnswerHead& head) { std::memcpy(to, &head, sizeof(head)); }

  Buffer buffer_;
  size_t bytes_ = 0;
};

TableService::TableService(std::shared_ptr<Endpoint> endpoint, const std::string& job_id)
    : endpoint_(std::move(endpoint)) {
  thread_ = start_thread([this, prefix = "tables/" + job_id + "/"] { run(prefix); });
}

TableService::~TableService() {
  stop_ = true;
  thread_.join();
  for (ServedConnection& served : served_) served.thread.join();
}

void TableService::check_stop() const {
  if (stop_) throw Stopped();
}

void TableService::run(const std::string& prefix) {
  for (;;) {
    try {
      auto [channel_name, connection] =
          endpoint_->accept_any(prefix, Deadline::never(), [this] { check_stop(); });
      served_.remove_if([](ServedConnection& served) {
        if (!served.ended) return false;
        served.thread.join();
        return true;
      });
      ServedConnection& served = served_.emplace_back();
      served.connection = std::move(connection);
      served.thread = start_thread([this, &served] {
        serve(served.connection);
        served.connection = Connection();
        served.ended = true;
      });
    } catch (const Stopped&) {
      return;
    }
  }
}

void TableService::serve(Connection& connection) {
  const auto stop = [this] { check_stop(); };
  Buffer buffer;
  Answer reply;
  try {
    for (;;) {
      RequestHead head;
      connection.receive(&head, sizeof(head), Deadline::never(), stop);
      try {
        check_head(head);
      } catch (const InvalidArgument& error) {
        log_warning("dropped {}: {}", connection.peer(), error.what());
        reply.refuse(error.what());
        reply.send(connection, stop);
        return;
      }
      const size_t size = body_bytes(head);
      std::byte* body = buffer.reserve(size);
      connection.receive(body, size, Deadline::never(), stop);
      if (head.kind == TableRequest::kClose) return;
      try {
        answer(head, {body, size}, reply);
      } catch (const std::exception& error) {
        reply.refuse(error.what());
      }
      reply.send(connection, stop);
    }
  } catch (const Stopped&) {
  } catch (const std::exception& error) {
    log_debug("a connection to the tables ended: {}", error.what());
  }
}

void TableService::answer(const RequestHead& head, std::span<const std::byte> body, Answer& answer) {
  const auto* ids = reinterpret_cast<const int64_t*>(body.data());
  const auto* rows = reinterpret_cast<const float*>(ids + head.count);
  const auto* text = reinterpret_cast<const char*>(body.data()) + body.size() - head.text_length;
  const std::string name(text - head.name_length, head.name_length);
  if (head.kind == TableRequest::kCreate) {
    create(head, name, std::string(text, head.text_length));
    answer.body(0);
    return;
  }
  Table& table = table_of(name);
  if (head.kind == TableRequest::kSize) {
    const TableSize size = table.size();
    std::memcpy(answer.body(sizeof(size)), &size, sizeof(size));
    return;
  }
  if (head.width != table.options().width)
    raise<InvalidArgument>("the rows of table '{}' have {} floats, not {}", name, table.options().width,
                           head.width);
  if (head.kind == TableRequest::kPush) {
    push(head, table, {ids, head.count}, rows);
    answer.body(0);
  } else {
    auto* found = reinterpret_cast<float*>(answer.body(size_t{head.count} * head.width * sizeof(float)));
    table.pull({ids, head.count}, found);
  }
}

void TableService::create(const RequestHead& head, const std::string& name, const std::string& rule) {
  const TableOptions options = {.name = name,
                                .width = head.width,
                                .rule = parse_row_rule(rule),
                                .scale = head.scale,
                                .seed = head.seed};
  const MutexLock lock(mutex_);
  const auto [found, created] = tables_.try_emplace(name, options);
  const TableOptions& there = found->second.options();
  if (there.width != options.width || there.rule->to_string() != options.rule->to_string() ||
      there.scale != options.scale || there.seed != options.seed) {
    raise<InvalidArgument>(
        "table '{}' is there already and differs: it has width {}, rule '{}', scale {} and seed {}; expected "
        "width {}, rule '{}', scale {} and seed {}",
        name, there.width, there.rule->to_string(), there.scale, there.seed, options.width,
        options.rule->to_string(), options.scale, options.seed);
  }
}

void TableService::push(const RequestHead& head, Table& table, std::span<const int64_t> ids,
                        const float* gradients) {
  Worker& worker = worker_of(head.worker);
  const MutexLock lock(worker.mutex);
  const bool first = worker.sequence == 0 || head.incarnation > worker.incarnation;
  if (!first && head.incarnation < worker.incarnation)
    raise<InvalidArgument>("incarnation {} of worker/{} is over: incarnation {} pushes already",
                           head.incarnation, head.worker, worker.incarnation);
  if (!first && head.client != worker.client)
    raise<InvalidArgument>("worker/{} has two clients in incarnation {}; expected one", head.worker,
                           head.incarnation);
  if (!first && head.sequence <= worker.sequence) return;
  table.push(ids, gradients);
  worker.incarnation = head.incarnation;
  worker.client = head.client;
  worker.sequence = head.sequence;
}

Table& TableService::table_of(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found = tables_.find(name);
  if (found == tables_.end()) raise<InvalidArgument>("there is no table '{}' on this server", name);
  return found->second;
}

TableService::Worker& TableService::worker_of(uint32_t worker) {
  const MutexLock lock(mutex_);
  return workers_[worker];
}

}  // namespace muster::detail
