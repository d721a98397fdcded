// An arbiter on a file system that the nodes share.
//
//   PATH.<job>                       the job, made by its first coordinator
//   PATH.<job>.<term>-<attempt>.<n>  claim n on that round, one line of JSON
//   PATH.<job>.beat-<node_id>        that agent's beat
//
// A claim is written under a name of its own and then linked to its number: link(2) fails where the
// number is taken, and is one request to the server also on NFS, so that of two nodes one has it,
// and whoever reads it reads all of it. (O_EXCL would leave an empty claim behind when its writer
// dies between the two steps.) No lock is taken and no clock is read.
#pragma once

#include <string>

#include "rendezvous/arbiter/arbiter.h"

namespace ddprun::rendezvous {

class FileArbiter : public Arbiter {
 public:
  explicit FileArbiter(std::string path, std::string run_id)
      : path_(std::move(path)), run_id_(std::move(run_id)) {}

  void found(const std::string& job) override;
  bool knows(const std::string& job) override;
  Claims carry_out(const std::string& job, const std::string& node_id,
                   const ArbiterTask& task) override;
  void forget(const std::string& job) override;
  std::string name() const override { return "--tie-breaker " + path_; }

 private:
  std::string file_of(const std::string& job) const { return path_ + "." + job; }
  void add(const std::string& job, const std::string& name, const std::string& text) const;
  [[noreturn]] void fail(const std::string& what, const std::string& file, int error) const;

  std::string path_;
  std::string run_id_;
};

}  // namespace ddprun::rendezvous
