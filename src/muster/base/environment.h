#pragma once

// The environment variables, as a value. Environment::of_process is the only place in Muster that reads
// them, once at start; everything else is handed an Environment, so that tests can make their own. The
// process's own environment is never changed.

#include <sys/types.h>

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::detail {

class Environment {
 public:
  Environment() = default;
  Environment(std::initializer_list<std::pair<const std::string, std::string>> variables)
      : variables_(variables) {}

  static Environment of_process();

  /// Of another process, as it was when its program started; empty when that can't be read.
  static Environment of_process(pid_t process);

  /// The value; an empty variable counts as unset.
  std::optional<std::string> get(const std::string& name) const;

  /// Throws InvalidArgument, naming the variable, when it is set and not a whole number of at least
  /// `minimum`.
  std::optional<int> integer(const std::string& name, int minimum) const;

  std::vector<std::string> names_with_prefix(const std::string& prefix) const;

  void set(const std::string& name, std::string value) { variables_[name] = std::move(value); }
  void unset(const std::string& name) { variables_.erase(name); }

  /// "NAME=value" for each, as execve wants it.
  std::vector<std::string> assignments() const;

 private:
  void add(std::string_view assignment);

  std::map<std::string, std::string> variables_;
};

/// Pointers to the texts with a null at the end, as execve wants them; valid as long as `texts` is.
std::vector<char*> exec_pointers(std::vector<std::string>& texts);

}  // namespace muster::detail
