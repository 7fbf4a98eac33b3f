#include "muster/cluster/coordinator_protocol.h"

#include <fmt/format.h>

namespace muster::detail {

proto::Task to_proto(const TaskName& name) {
  proto::Task task;
  task.set_job(name.job.value_or(""));
  task.set_index(name.task.value_or(0));
  return task;
}

TaskName from_proto(const proto::Task& task) {
  return TaskName::of(task.job(), task.index());
}

proto::TaskInfo to_proto(const TaskInfo& info) {
  proto::TaskInfo result;
  *result.mutable_task() = to_proto(info.task);
  result.set_address(info.address);
  result.set_host_name(info.host_name);
  result.set_host_identity(info.host_identity);
  result.set_pid(info.pid);
  result.set_incarnation(info.incarnation);
  return result;
}

TaskInfo from_proto(const proto::TaskInfo& info) {
  return {.task = from_proto(info.task()),
          .address = info.address(),
          .host_name = info.host_name(),
          .host_identity = info.host_identity(),
          .pid = info.pid(),
          .incarnation = info.incarnation()};
}

proto::Wait to_proto(const Wait& wait) {
  proto::Wait result;
  result.set_id(wait.id);
  result.set_of(wait.of);
  result.set_inside(wait.inside);
  result.set_what(wait.wait_for.what);
  for (const auto& task : wait.wait_for.tasks) result.add_tasks(task);
  result.set_enough(wait.wait_for.enough);
  result.set_detail(wait.wait_for.detail);
  result.set_meeting(wait.wait_for.meeting);
  result.set_barrier(wait.wait_for.barrier);
  result.set_key(wait.wait_for.key);
  result.set_subject(wait.wait_for.subject);
  result.set_limit(static_cast<proto::Wait::Limit>(wait.wait_for.limit));
  result.set_main(wait.main);
  result.set_looks(wait.looks);
  result.set_age_ms(
      std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - wait.since).count());
  return result;
}

std::string challenge_text(const char* role, const proto::Hello& hello,
                           const std::string& coordinator_nonce) {
  return fmt::format("muster/{}/{}/{}/{}/{}", role, hello.job_id(),
                     from_proto(hello.self().task()).to_string(), hello.nonce(), coordinator_nonce);
}

}  // namespace muster::detail
