#pragma once

// All of Muster's public headers, with all of libtorch's. A program that trains needs run.h and trainer.h,
// which are quicker to compile; one without tensors needs run.h, and communicator.h for collectives.

#include <torch/torch.h>  // IWYU pragma: export

#include "muster/communicator.h"
#include "muster/control_flow.h"
#include "muster/deadline.h"
#include "muster/dtype.h"
#include "muster/embedding.h"
#include "muster/error.h"
#include "muster/graph.h"
#include "muster/idx.h"
#include "muster/job.h"
#include "muster/metrics.h"
#include "muster/monitored_session.h"
#include "muster/ops.h"
#include "muster/optim.h"
#include "muster/pipeline.h"
#include "muster/progress.h"
#include "muster/queue.h"
#include "muster/run.h"
#include "muster/schedule.h"
#include "muster/seed.h"
#include "muster/server.h"
#include "muster/session.h"
#include "muster/shard.h"
#include "muster/stages.h"
#include "muster/sync_batch_norm.h"
#include "muster/sync_replicas.h"
#include "muster/tensor_collectives.h"
#include "muster/timeline.h"
#include "muster/trace.h"
#include "muster/trainer.h"
