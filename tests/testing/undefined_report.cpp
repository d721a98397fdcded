// Puts what UBSan finds into the reports of AddressSanitizer, in a file each (scripts/test): beside
// it, UBSan itself only writes to stderr with g++ 12, where a test may take no notice of it.
// Part of every program of such a build; see cmake/ddprun.cmake.
#include <string>

extern "C" {
// Of the sanitizers' runtimes, whose headers have not all of them.
void __sanitizer_print_stack_trace();
void __sanitizer_report_error_summary(const char* text);
void __ubsan_get_current_report_data(const char** kind, const char** message, const char** file,
                                     unsigned* line, unsigned* column, char** address);
void __ubsan_on_report();
}

// UBSan calls it for each finding.
void __ubsan_on_report() {
  const char *kind = "", *message = "", *file = "";
  unsigned line = 0, column = 0;
  char* address = nullptr;
  __ubsan_get_current_report_data(&kind, &message, &file, &line, &column, &address);
  const std::string text = std::string("UndefinedBehaviorSanitizer: ") + kind + " at " + file +
                           ":" + std::to_string(line) + ": " + message;
  __sanitizer_report_error_summary(text.c_str());
  __sanitizer_print_stack_trace();
}
