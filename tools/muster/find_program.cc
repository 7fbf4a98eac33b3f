#include "muster/find_program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

bool is_program(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_program(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) {
    if (is_program(name)) return name;
    const char* problem = std::filesystem::exists(name) ? "is not an executable file" : "does not exist";
    raise<InvalidArgument>("the program {} {}", name, problem);
  }
  for (const auto& folder : split(search_path, ':')) {
    if (!folder.empty() && is_program(std::filesystem::path(folder) / name))
      return std::filesystem::path(folder) / name;
  }
  const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  if (is_program(beside)) return beside;
  const char* hint = is_program(name) ? "; there is one in this folder: write ./" : "";
  raise<InvalidArgument>("the program {} is neither in PATH nor beside muster{}{}", name, hint,
                         *hint != '\0' ? name : "");
}

}  // namespace muster::detail
