// The classic: every task says hello, waits for the others, and the chief shows the cluster.
//
//   muster run --workers 2 --ps 1 -- hello_cluster
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
        fmt::print("  {:<10} {:<18} host {}, pid {}: {}\n", task.name,
                   task.address.empty() ? "(no network)" : task.address, task.host, task.pid,
                   job.get("greeting/" + task.name));
      }
    }
  });
}
