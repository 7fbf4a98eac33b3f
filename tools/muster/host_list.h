#pragma once

// The hosts of --hosts and --hostfile. Pure but for reading the file and this host's name; any thread may
// call them.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace muster::detail {

struct HostEntry {
  std::string name;  ///< as ssh takes it: "h1", "user@h1"
  int slots = 0;     ///< how many workers it has room for; 0: nobody said

  /// Without the user: where the others reach it.
  std::string address() const;
};

/// "h1,user@h2". Throws InvalidArgument for an empty name, or one that ssh would take for a flag.
std::vector<HostEntry> parse_hosts(std::string_view text);

/// A host a line, with slots as Open MPI ("h1 slots=4") or MPICH ("h1:4") write them; # begins a comment.
/// Throws InvalidArgument, with the line, for anything else, and when the file can't be read or has no host.
std::vector<HostEntry> read_hostfile(const std::filesystem::path& file);

/// Whether it is the host that this process runs on, which needs no ssh to itself.
bool is_this_host(const HostEntry& host);

/// How many workers there are when --workers does not say it: the slots, or one on each host. Throws
/// InvalidArgument when the hosts have different numbers of slots, since each node runs an equal share.
int default_workers(const std::vector<HostEntry>& hosts);

}  // namespace muster::detail
