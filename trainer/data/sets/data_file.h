// Whole data files, plain or gzipped, with errors that name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ddprun::trainer {

// Reads a file and unpacks it when its content is gzip. Throws DataError when it is missing,
// unreadable, damaged, or longer than `bytes_max` unpacked; UnreadDataError as throw_unread() does.
std::vector<std::uint8_t> read_data_file(const std::filesystem::path& path, std::size_t bytes_max);

// Checks every file that FOLDER/SHA256SUMS lists: "<64 hex digits>  <name>" a line, as sha256sum
// writes, or "SHA256 (<name>) = <64 hex digits>" as with --tag; empty lines and those that begin
// with '#' are passed over. Returns how many were checked, 0 when there is no such list. Throws
// DataError for a missing file, a wrong sum or any other line.
int verify_checksums(const std::filesystem::path& folder);

// 32 hexadecimal digits. Throws DataError.
std::string md5_of(const std::filesystem::path& path);

}  // namespace ddprun::trainer
