#pragma once

// MPI in this process. It is initialised when first needed, unless the program has done so, and then
// finalised when the process exits with 0. A process that failed leaves it to mpirun to end the others, which
// MPI_Finalize would wait for. It is one for the process, and thread-safe.

#include <mpi.h>

#include <memory>
#include <string>

#include "muster/base/dtype.h"
#include "muster/collective/operation.h"

namespace muster::detail::mpi {

/// Throws InvalidArgument when the program has initialised MPI without MPI_THREAD_MULTIPLE, or finalised it.
void start();

/// An operation was given up while MPI still works on it, with `memory`: it is never freed, and MPI is not
/// finalised.
void leave_unfinished(std::shared_ptr<void> memory);

bool unfinished();

/// Throws PeerLost when `code` is an error of MPI.
void check(int code, const char* function);

/// The type, and the operation on it, that reductions use; an average is a sum. float16 and bfloat16, which
/// MPI does not have, are reduced by Muster's kernels.
MPI_Datatype type_of(DType dtype);
MPI_Op operation_of(DType dtype, ReduceOp op);

/// "Open MPI v4.1.4" or "MPICH Version 4.0.2".
std::string library_name();

}  // namespace muster::detail::mpi
