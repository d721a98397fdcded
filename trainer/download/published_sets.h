// Where data sets are published, and how what comes from there is known to be right.
//
// The MD5 sums are those that torchvision compares with. They find damage and other versions; an
// attacker who can change the file may make another with the same sum.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::trainer {

struct PublishedFile {
  std::string name;         // In the data folder.
  std::int64_t bytes = 0;   // 0: not known.
  std::string md5;          // 32 hexadecimal digits; empty: not known.
  std::string alternative;  // A file that serves as well, such as the unpacked one; or empty.
};

struct PublishedDownload {
  std::string address;
  std::string md5;
  bool archive = false;              // A .tar.gz that holds the files; otherwise it is the file.
  std::vector<PublishedFile> files;  // Those that are wanted.
};

struct PublishedSet {
  std::string name;
  std::vector<PublishedDownload> downloads;
};

// "mnist", "cifar10" or "stl10". Throws std::invalid_argument for any other.
PublishedSet published_set(std::string_view dataset);

// "x.tar.gz" of "http://host/folder/x.tar.gz".
std::string last_part(const std::string& address);

// The same downloads from a mirror: a folder that has the files under their names.
PublishedSet mirrored(PublishedSet set, const std::string& folder_address);

}  // namespace ddprun::trainer
