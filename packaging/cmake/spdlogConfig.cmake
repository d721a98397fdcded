# spdlog and fmt as headers alone, in the place of Debian's libraries: a program that is carried to other machines
# finds no libspdlog there, nor the libfmt of that very version. DDPRUN_HEADERS: where their headers are.
add_library(fmt::fmt INTERFACE IMPORTED)
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY=1)
target_include_directories(fmt::fmt INTERFACE ${DDPRUN_HEADERS})

add_library(spdlog::spdlog INTERFACE IMPORTED)
target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(spdlog::spdlog INTERFACE fmt::fmt Threads::Threads)
