#pragma once

// What mpirun of Open MPI has to be told in tests. It keeps its files in a folder of its own: those of one
// host share one otherwise, which the last to end removes while another one begins.
//
// Used by one thread. Throws SystemError where no folder can be made.

#include <filesystem>
#include <map>
#include <string>

namespace muster::detail::testing {

class MpiEnvironment {
 public:
  MpiEnvironment();
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  /// For one mpirun at a time.
  std::map<std::string, std::string> variables() const;

 private:
  std::filesystem::path folder_;
};

}  // namespace muster::detail::testing
