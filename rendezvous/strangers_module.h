// Whose a library is that lies beside the program and is to be opened as a part of it: in a folder
// where anybody may put files, as /tmp, it may be another user's. In others who may write is
// trusted.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace ddprun::rendezvous {

// `file` is a path with its folder. Not what a link leads to is looked at: whose the link is may
// lead it elsewhere at any time.
inline bool is_strangers_module(const std::string& file) {
  struct stat module = {}, folder = {}, program = {};
  const std::string parent = file.substr(0, file.rfind('/') + 1);
  if (::lstat(file.c_str(), &module) != 0 || ::stat(parent.c_str(), &folder) != 0) return false;
  if ((folder.st_mode & S_IWOTH) == 0) return false;
  if (module.st_uid == ::geteuid() || module.st_uid == 0) return false;
  return ::stat("/proc/self/exe", &program) != 0 || module.st_uid != program.st_uid;
}

}  // namespace ddprun::rendezvous
