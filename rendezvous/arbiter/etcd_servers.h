// Where an etcd is, and the files that prove who is who there.
#pragma once

#include <string>
#include <vector>

namespace ddprun::rendezvous {

struct EtcdServers {
  std::vector<std::string> urls;  // "http://10.0.0.1:2379"; several of one cluster.
  // PEM files for https; "" = the system's authorities, and no certificate of our own.
  std::string authority_file, certificate_file, key_file;

  bool any() const { return !urls.empty(); }
  std::string text() const {  // For people.
    std::string all;
    for (const std::string& url : urls) all += (all.empty() ? "" : ",") + url;
    return all;
  }
};

}  // namespace ddprun::rendezvous
