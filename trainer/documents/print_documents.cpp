// Prints what is made from the options of train, for scripts/update_docs.
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "trainer/documents/train_documents.h"

int main(int argc, char** argv) {
  using namespace ddprun::trainer;
  const std::string what = argc == 2 ? argv[1] : "";
  try {
    if (what == "man") {
      std::cout << train_man_page();
    } else if (what == "bash") {
      std::cout << train_bash_completion();
    } else if (what == "zsh") {
      std::cout << train_zsh_completion();
    } else if (what == "fish") {
      std::cout << train_fish_completion();
    } else {
      std::fputs("usage: print_train_documents man|bash|zsh|fish\n", stderr);
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "print_train_documents: %s\n", error.what());
    return 1;
  }
  return std::cout.flush() ? 0 : 1;
}
