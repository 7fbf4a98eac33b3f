// The classic: every task says hello, waits for the others, and the chief shows the cluster.
//
//   muster run --workers 2 -- hello_cluster
//   muster run --workers 2 --ps 1 --strategy none -- hello_cluster
//   mpirun -n 2 hello_cluster

#include <fmt/format.h>

#include "muster/run.h"

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Job& job) {
    const std::string me = job.task().name;
    fmt::print("hello from {} (started by: {})\n", me, job.launcher());

    // A value that every task leaves for the others, and a place where all wait.
    job.put("greeting/" + me, "greetings from " + me);
    job.barrier("all have said hello");

    if (job.is_chief()) {
      fmt::print("the cluster has {} tasks:\n", job.tasks().size());
      for (const auto& task : job.tasks()) {
        // With --strategy ps-... a server serves parameters, and does not come here.
        const bool is_server = task.name.starts_with("ps/");
        fmt::print("  {:<10} {:<18} host {}, pid {}: {}\n", task.name,
                   task.address.empty() ? "(no network)" : task.address, task.host, task.pid,
                   is_server ? "a server" : job.get("greeting/" + task.name));
      }
    }
  });
}
