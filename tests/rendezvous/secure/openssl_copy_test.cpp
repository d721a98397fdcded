// When the copy of OpenSSL serves: while the machine has the very build that it was made from.
#include "rendezvous/secure/openssl_copy.h"

#include <elf.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "rendezvous/key_agreement.h"
#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::rendezvous;
using ddprun::testing::TemporaryFolder;

namespace {

template <typename Part>
std::string bytes_of_part(const Part& part) {
  return std::string(reinterpret_cast<const char*>(&part), sizeof(part));
}

std::string note(std::uint32_t type, const std::string& description) {
  const Elf64_Nhdr head{4, static_cast<Elf64_Word>(description.size()), type};
  return bytes_of_part(head) + std::string("GNU", 4) + description;
}

// As much of a library as says which build it is.
std::string library(const std::string& notes) {
  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = ELFCLASS64;
  head.e_phoff = sizeof(head);
  head.e_phnum = 2;
  Elf64_Phdr code{}, part{};
  code.p_type = PT_LOAD;
  part.p_type = PT_NOTE;
  part.p_offset = sizeof(head) + 2 * sizeof(part);
  part.p_filesz = notes.size();
  return bytes_of_part(head) + bytes_of_part(code) + bytes_of_part(part) + notes;
}

const std::string property = note(NT_GNU_PROPERTY_TYPE_0, "01234567");

std::string id_of(const TemporaryFolder& folder, const std::string& content) {
  std::ofstream(folder / "file") << content;
  return build_id_of(folder / "file");
}

}  // namespace

TEST_CASE("a library's build id is read from its notes", "[secure][openssl]") {
  const TemporaryFolder folder;
  CHECK(id_of(folder, library(property + note(NT_GNU_BUILD_ID, "\x01\xab\xff\x10"))) == "01abff10");
  CHECK(id_of(folder, library(note(NT_GNU_PROPERTY_TYPE_0, "12345") + std::string(3, '\0') +
                              note(NT_GNU_BUILD_ID, "\x01\xab\xff\x10"))) ==
        "01abff10");  // Notes are padded.
  CHECK(id_of(folder, library(property)).empty());
  std::string of_32_bits = library(note(NT_GNU_BUILD_ID, "\x01\xab\xff\x10"));
  of_32_bits[EI_CLASS] = ELFCLASS32;
  CHECK(id_of(folder, of_32_bits).empty());
  CHECK(id_of(folder, "").empty());
  CHECK(id_of(folder, "#!/bin/sh\n").empty());
  CHECK(build_id_of(folder / "nothing").empty());
  CHECK(build_id_of(folder.path()).empty());
}

TEST_CASE("a library that is cut off anywhere, or lies, has no build id", "[secure][openssl]") {
  const TemporaryFolder folder;
  const std::string whole = library(property + note(NT_GNU_BUILD_ID, "\x01\xab\xff\x10"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK(id_of(folder, whole.substr(0, size)).empty());
  }
  // Each byte on the way to it may be anything: no crash, and never an id that is not in the file.
  for (std::size_t at = 0; at < whole.size() - 4; ++at) {
    std::string other = whole;
    other[at] = '\xff';
    const std::string id = id_of(folder, other);
    INFO(at);
    CHECK((id.empty() || id == "01abff10"));
  }
}

TEST_CASE("the copy serves for the libraries that it was made from, and no others",
          "[secure][openssl]") {
  const TemporaryFolder folder;
  std::ofstream(folder / "libssl.so.3") << library(note(NT_GNU_BUILD_ID, "ssl1"));
  std::ofstream(folder / "libcrypto.so.3") << library(note(NT_GNU_BUILD_ID, "cry1"));
  const std::string ssl = build_id_of(folder / "libssl.so.3");
  const std::string crypto = build_id_of(folder / "libcrypto.so.3");

  CHECK(is_copy_of(folder.path(), ssl, crypto));
  CHECK_FALSE(is_copy_of(folder.path(), "", ""));
  CHECK_FALSE(is_copy_of(folder / "nothing", ssl, crypto));
  std::ofstream(folder / "libcrypto.so.3") << library(note(NT_GNU_BUILD_ID, "cry2"));
  CHECK_FALSE(is_copy_of(folder.path(), ssl, crypto));
  std::ofstream(folder / "libcrypto.so.3") << library(note(NT_GNU_BUILD_ID, "cry1"));
  std::ofstream(folder / "libssl.so.3") << library(note(NT_GNU_BUILD_ID, "ssl2"));
  CHECK_FALSE(is_copy_of(folder.path(), ssl, crypto));
  // What says of no build is the same as no other.
  std::ofstream(folder / "libssl.so.3") << library("");
  CHECK_FALSE(is_copy_of(folder.path(), "", crypto));
  std::ofstream(folder / "libcrypto.so.3") << library("");
  CHECK_FALSE(is_copy_of(folder.path(), "", ""));
}

#ifdef DDPRUN_OPENSSL_COPY_BUILT
TEST_CASE("the copy is what is opened here, and it has what ddprun calls", "[secure][openssl]") {
  openssl();
  std::stringstream maps;
  maps << std::ifstream("/proc/self/maps").rdbuf();
  CHECK(maps.str().find(openssl_copy_file) != std::string::npos);

  // Random numbers and a key exchange come from algorithms that OpenSSL asks for by itself.
  CHECK_NOTHROW(KeyAgreement());
}
#endif
