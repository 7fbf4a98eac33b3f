#include "muster/train/worker_group.h"

#include "muster/error.h"

namespace muster::detail {

std::unique_ptr<WorkerGroup> make_worker_group(JobContext& job) {
  if (job.config().strategy == "none")
    throw InvalidArgument(
        "--strategy none is for programs that train in a way of their own; a Trainer needs --strategy "
        "allreduce, ps-sync, ps-async, ps-ssp or ps-local");
  return job.config().uses_servers() ? make_server_group(job) : make_communicator_group(job);
}

}  // namespace muster::detail
