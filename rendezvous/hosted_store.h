// A store in a thread of this process, for jobs that run without a launcher: there rank 0 hosts it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace ddprun::rendezvous {

class HostedStore {
 public:
  // Listens at once. `bind_address` is numeric; "" = every interface. Port 0 = a free one. Throws
  // std::system_error that names both.
  HostedStore(const std::string& bind_address, std::uint16_t port);
  // Closes the port and every connection: all other ranks must be done with the store.
  ~HostedStore();

  std::uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::rendezvous
