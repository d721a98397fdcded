// The page on which this process says where it is, as a launcher would have given it one.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "rendezvous/contract/progress_page.h"
#include "tests/testing/patience.h"
#include "worker/progress_page.h"

namespace ddprun::testing {

class OwnPage {
 public:
  OwnPage() {
    // One for all: a process keeps the mapping of a place, and knows it by its descriptor.
    static const int fd = make();
    void* const memory = ::mmap(nullptr, rendezvous::progress_page_stride, PROT_READ | PROT_WRITE,
                                MAP_SHARED, fd, 0);
    layout_ = new (memory) rendezvous::ProgressPageLayout{};
    std::memcpy(layout_->magic, rendezvous::progress_page_magic, sizeof layout_->magic);
    layout_->version = rendezvous::progress_page_version;
    layout_->bytes = sizeof *layout_;
    ::setenv(rendezvous::progress_page_variable, (std::to_string(fd) + ":0").c_str(), 1);
    worker::ProgressPage::own().follow_rank();
  }
  ~OwnPage() {
    ::unsetenv(rendezvous::progress_page_variable);
    worker::ProgressPage::own().follow_rank();
    ::munmap(layout_, rendezvous::progress_page_stride);
  }
  OwnPage(const OwnPage&) = delete;
  OwnPage& operator=(const OwnPage&) = delete;

  bool tells_of_a_wait() const { return std::atomic_ref(layout_->waiting_since_ns).load() != 0; }
  // False: it has not told in time.
  bool comes_to_tell_of_a_wait() const {
    const auto end = std::chrono::steady_clock::now() + patience(std::chrono::seconds{20});
    while (!tells_of_a_wait() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return tells_of_a_wait();
  }

 private:
  static int make() {
    const int fd = ::memfd_create("page", MFD_CLOEXEC);
    if (::ftruncate(fd, rendezvous::progress_page_stride) != 0) std::abort();
    return fd;
  }
  rendezvous::ProgressPageLayout* layout_;
};

}  // namespace ddprun::testing
