// Stacks as glibc's backtrace_symbols() writes them, made readable.
//
// A core: text in, text out.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::launcher {

// Each line "program(_ZN3foo3barEv+0x1f)[0x55d0...]" becomes "foo::bar()+0x1f in program", one
// without a name "program(+0x1f)", which addr2line reads. Every other line stays as it is.
std::string readable_stack(std::string_view text);

}  // namespace ddprun::launcher
