#include "muster/train/worker_group.h"

namespace muster::detail {

std::unique_ptr<WorkerGroup> make_worker_group(JobContext& job) {
  return job.config().strategy.starts_with("ps-") ? make_server_group(job) : make_communicator_group(job);
}

}  // namespace muster::detail
