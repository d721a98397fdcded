// The folder in which this user's launchers on this host can be found: a Unix socket for each,
// which answers who asks where its job stands.
//
//   $XDG_RUNTIME_DIR/ddprun/PID-RANDOM    else, without one, $TMPDIR/ddprun-UID/ or
//   /tmp/ddprun-UID/
//
// A launcher takes the first of these that it may; who looks for jobs looks into all of them, since
// a batch job and a login have not the same environment. DDPRUN_RUN_DIR names one folder instead.
// Only folders of this user's own with the mode 0700 count: anybody may make a name in /tmp.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

// The places, in order. Pure.
std::vector<std::string> run_folder_places(
    const std::function<std::optional<std::string>(const std::string& name)>& environment,
    unsigned user);

// Opens the folder, if it is this user's alone; made first if `make`. Nothing: it is not there, or
// not to be trusted, and `why` says so.
rendezvous::UniqueFd open_run_folder(const std::string& path, bool make, std::string& why);

// The names in an open folder that can be launchers' sockets.
std::vector<std::string> socket_names(int folder);

// A path for bind() and connect(), whose own may be longer than the 107 bytes that they take.
std::string short_path(int folder, const std::string& name);

}  // namespace ddprun::launcher
