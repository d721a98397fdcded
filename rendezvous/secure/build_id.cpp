// An ELF file says in its first page which build it is.
#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "rendezvous/secure/openssl_copy.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t page_bytes = 4096;  // Linkers put notes behind the program headers.

template <typename Part>
bool read_part(std::string_view page, std::size_t at, Part& part) {
  if (at > page.size() || page.size() - at < sizeof(Part)) return false;
  std::memcpy(&part, page.data() + at, sizeof(Part));
  return true;
}

std::string hexadecimal(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

// Sizes in a note are padded to words.
constexpr std::size_t padded(std::size_t size) { return (size + 3) / 4 * 4; }

std::string build_id_in_notes(std::string_view notes) {
  Elf64_Nhdr note;
  while (read_part(notes, 0, note)) {
    notes.remove_prefix(sizeof(note));
    const std::size_t name = padded(note.n_namesz);
    if (name > notes.size() || note.n_descsz > notes.size() - name) return "";
    if (note.n_type == NT_GNU_BUILD_ID &&
        notes.substr(0, note.n_namesz) == std::string_view("GNU", 4)) {
      return hexadecimal(notes.substr(name, note.n_descsz));
    }
    notes.remove_prefix(std::min(notes.size(), name + padded(note.n_descsz)));
  }
  return "";
}

}  // namespace

std::string build_id_of(const std::string& library_file) {
  const UniqueFd file(::open(library_file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::array<char, page_bytes> bytes;
  const ssize_t size = file.get() < 0 ? -1 : ::read(file.get(), bytes.data(), bytes.size());
  const std::string_view page(bytes.data(), size < 0 ? 0 : static_cast<std::size_t>(size));
  Elf64_Ehdr head;
  if (!read_part(page, 0, head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
      head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phoff > page.size()) {
    return "";
  }
  Elf64_Phdr part;
  for (std::size_t i = 0; i < head.e_phnum; ++i) {
    if (!read_part(page, head.e_phoff + i * sizeof(part), part)) return "";
    if (part.p_type != PT_NOTE || part.p_offset > page.size()) continue;
    std::string id = build_id_in_notes(page.substr(part.p_offset, part.p_filesz));
    if (!id.empty()) return id;
  }
  return "";
}

bool is_copy_of(const std::string& folder, std::string_view ssl_build_id,
                std::string_view crypto_build_id) {
  return !ssl_build_id.empty() && !crypto_build_id.empty() &&
         build_id_of(folder + "/libssl.so.3") == ssl_build_id &&
         build_id_of(folder + "/libcrypto.so.3") == crypto_build_id;
}

}  // namespace ddprun::rendezvous
