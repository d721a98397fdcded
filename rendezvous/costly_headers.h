// What most units of the launcher and of the rendezvous include, precompiled once
// (cmake/ddprun.cmake): most of what g++ parses in them. No file includes this one, and none may
// rely on it: each says itself what it uses, and scripts/check_tidy compiles each without.
#pragma once

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <asio.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

// spdlog's calls go past fmt's compiled functions to the template behind them, so that each unit
// that logs a line compiled all of fmt. Its library has that template for char, but fmt 9 does not
// say so in its headers, where clang would not take it; later ones have a function there.
#if FMT_VERSION / 10000 == 9 && !defined(FMT_HEADER_ONLY) && !defined(__clang__)
FMT_BEGIN_NAMESPACE
namespace detail {
extern template FMT_API void vformat_to(buffer<char>&, basic_string_view<char>,
                                        basic_format_args<buffer_context<char>>, locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
#endif
