// The folder in which this user's launchers on this host can be found: a Unix socket for each,
// which answers who asks where its job stands.
//
//   $XDG_RUNTIME_DIR/ddprun/PID-BOOT-RANDOM    else, without one, $TMPDIR/ddprun-UID/ or
//   /tmp/ddprun-UID/
//
// BOOT is the machine's, from its last start to its next: the folder may lie on a file system of
// several hosts, and from here another one's socket looks as that of a launcher that was killed.
// Ruled out: the host's name, for containers of one kernel, which can reach each other's sockets,
// have several, and cloned machines have one together. The price is that a name stays when its
// machine goes down; nobody else could tell it from one that is in use.
//
// A launcher takes the first of these that it may; who looks for jobs looks into all of them, since
// a batch job and a login have not the same environment. DDPRUN_RUN_DIR names one folder instead.
// Only folders of this user's own with the mode 0700 count: anybody may make a name in /tmp.
#pragma once

#include <sys/un.h>

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/environment.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

// The places, in order. Pure.
std::vector<std::string> run_folder_places(const rendezvous::EnvironmentLookup& environment,
                                           unsigned user);

// Opens the folder, if it is this user's alone; made first if `make`. Nothing: it is not there, or
// not to be trusted, and `why` says so; errno is that of the call that failed, if one did.
rendezvous::UniqueFd open_run_folder(const std::string& path, bool make, std::string& why);

// For a socket of this process.
std::string new_socket_name();

// The names in an open folder that can be sockets of launchers on this machine. Where it cannot be
// read there are none, and errno says why.
std::vector<std::string> socket_names(int folder);

// Its launcher was started on this machine: if nobody listens there, it has ended.
bool is_of_this_machine(const std::string& name);

// For bind() and connect(), by the open folder: its path may be longer than the 107 bytes that they
// take. Nothing: the name alone is.
std::optional<sockaddr_un> socket_address(int folder, const std::string& name);

}  // namespace ddprun::launcher
