#pragma once

// What a launcher is told on its standard input by the one that started it on its host (`muster run
// --hosts`): in the first line variables, among them the job's secret, which must not be seen on a command
// line; then a signal a line. The end of the input means that whoever started it is gone.
//
//   MUSTER_SECRET=3f9a LANG=43         values in hexadecimal digits: they may be any bytes
//   USR1
//
// When it has read the first line, it says so on its standard output: what a host's shell prints before, or
// instead, is not the launcher's.
//
// The functions have no state but standard input, which one of them reads at a time.

#include <string>
#include <string_view>

#include "muster/base/environment.h"

namespace muster::detail {

/// The first line.
std::string input_of_variables(const Environment& variables);

/// A line for a signal: "USR1\n".
std::string input_of_signal(int number);

/// What the launcher answers, in a line of its own.
constexpr std::string_view kLauncherReady = "muster: the launcher of this host has begun\n";

/// Reads the first line from standard input, sets its variables in `environment`, and answers. Blocks until
/// it has come; throws InvalidArgument when it is not such a line.
void read_variables(Environment& environment);

/// Makes a thread that reads the rest, to the end of the process: it sends this process the signals that it
/// reads, and SIGTERM at the end of the input. Call it when signals are blocked (LauncherSignals).
void obey_input();

}  // namespace muster::detail
