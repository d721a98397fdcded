// Prints what is made from the table of options, for scripts/update_docs:
//
//   print_documents man|bash|zsh|fish     the man page, a shell's completion
//   print_documents cli <docs/cli.md      that page with its tables made new
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>

#include "launcher/documents/completion.h"
#include "launcher/documents/man_page.h"
#include "launcher/documents/markdown_table.h"

int main(int argc, char** argv) {
  using namespace ddprun::launcher;
  const std::string what = argc == 2 ? argv[1] : "";
  try {
    if (what == "man") {
      std::cout << man_page();
    } else if (what == "bash") {
      std::cout << bash_completion();
    } else if (what == "zsh") {
      std::cout << zsh_completion();
    } else if (what == "fish") {
      std::cout << fish_completion();
    } else if (what == "cli") {
      std::cout << with_markdown_table({std::istreambuf_iterator<char>(std::cin), {}});
    } else {
      std::fputs("usage: print_documents man|bash|zsh|fish, or print_documents cli <docs/cli.md\n",
                 stderr);
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "print_documents: %s\n", error.what());
    return 1;
  }
  return std::cout.flush() ? 0 : 1;
}
