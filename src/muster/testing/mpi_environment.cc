#include "muster/testing/mpi_environment.h"

#include <cerrno>
#include <cstdlib>

#include "muster/base/error.h"

namespace muster::detail::testing {

MpiEnvironment::MpiEnvironment() {
  std::string name = "/tmp/muster-mpi-XXXXXX";  // short: sockets lie in it, whose names are limited
  if (mkdtemp(name.data()) == nullptr)
    raise<SystemError>("a folder for mpirun can't be made in /tmp: {}", describe_errno(errno));
  folder_ = name;
}

MpiEnvironment::~MpiEnvironment() {
  std::error_code ignored;  // what mpirun leaves in use goes with the machine's other temporary files
  std::filesystem::remove_all(folder_, ignored);
}

std::map<std::string, std::string> MpiEnvironment::variables() const {
  return {{"TMPDIR", folder_.string()},
          {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
          {"OMPI_MCA_rmaps_base_oversubscribe", "1"}};
}

}  // namespace muster::detail::testing
