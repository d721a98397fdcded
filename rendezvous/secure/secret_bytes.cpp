// Pages by mmap: those of the heap are shared with what a core file should hold.
#include "rendezvous/secure/secret_bytes.h"

#include <sys/mman.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace ddprun::rendezvous {

SecretBytes::SecretBytes(std::size_t size) : size_(size) {
  if (size == 0) return;
  void* pages = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "cannot get memory for a secret");
  }
  // Best effort: a kernel built without core files does not know the advice, and needs none.
  ::madvise(pages, size, MADV_DONTDUMP);
  data_ = static_cast<unsigned char*>(pages);
}

SecretBytes::~SecretBytes() {
  if (data_ == nullptr) return;
  // Not memset, which a compiler may leave out before memory that is given back.
  ::explicit_bzero(data_, size_);
  ::munmap(data_, size_);
}

SecretBytes SecretBytes::copy_of(std::string_view text) {
  SecretBytes result(text.size());
  if (!text.empty()) std::memcpy(result.data(), text.data(), text.size());
  return result;
}

// munmap() takes whole pages from the start of the mapping, so a shorter one is a new one.
void SecretBytes::keep(std::size_t begin, std::size_t end) {
  assert(begin <= end && end <= size_);
  *this = copy_of(text().substr(begin, end - begin));
}

}  // namespace ddprun::rendezvous
