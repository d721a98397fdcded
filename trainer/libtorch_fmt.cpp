// fmt as a library, of the headers that LibTorch brings: with them alone each unit that formats a
// line compiles all of fmt anew, which was 4 s of 15 for a unit of the trainer.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// The headers declare these as instantiated elsewhere: here.
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;

}  // namespace detail
FMT_END_NAMESPACE
