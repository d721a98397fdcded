# A copy of OpenSSL from its static libraries, in a module beside the programs.
#
# Binding the machine's two libraries and OpenSSL's search through all its algorithms are two thirds of what a secret costs a
# start; linked statically, and with those algorithms alone that are called, it costs half. Nobody would update a copy,
# though. So it stands in only for the very libraries that it was made from, told by their build ids
# (rendezvous/secure/openssl_copy.h): as soon as the machine gets other ones, an update, those are opened.
include(CheckCXXSourceCompiles)
include(GNUInstallDirs)
option(DDPRUN_OPENSSL_COPY "Make a copy of OpenSSL that opens faster, used where the machine has the same one" ON)

# Whether the static libraries are from the same build as the shared ones is told by the date that both carry.
function(ddprun_openssl_build result file)
  file(STRINGS ${file} built REGEX "^built on: " LIMIT_COUNT 1)
  set(${result} "${built}" PARENT_SCOPE)
endfunction()

function(ddprun_build_id result file)
  execute_process(COMMAND ${CMAKE_READELF} -n ${file} OUTPUT_VARIABLE notes ERROR_QUIET)
  string(REGEX MATCH "Build ID: ([0-9a-f]+)" found "${notes}")
  set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

# Sets `missing` where the caller is: why there can be no copy, or nothing.
function(ddprun_find_openssl_copy)
  get_filename_component(folder ${OPENSSL_SSL_LIBRARY} DIRECTORY)
  foreach(file libssl.a libcrypto.a libssl.so.3 libcrypto.so.3)
    if(NOT EXISTS ${folder}/${file})
      set(missing "there is no ${folder}/${file}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  ddprun_openssl_build(static_build ${folder}/libcrypto.a)
  ddprun_openssl_build(shared_build ${folder}/libcrypto.so.3)
  ddprun_build_id(ssl_id ${folder}/libssl.so.3)
  ddprun_build_id(crypto_id ${folder}/libcrypto.so.3)
  if(NOT static_build OR NOT static_build STREQUAL shared_build)
    set(missing "${folder}/libcrypto.a and libcrypto.so.3 are of different builds" PARENT_SCOPE)
  elseif(NOT ssl_id OR NOT crypto_id)
    set(missing "${folder}/libssl.so.3 has no build id" PARENT_SCOPE)
  else()
    # What the static libraries need besides is in their pkg-config file alone: with Debian 13's, zstd.
    set(besides)
    if(EXISTS ${folder}/pkgconfig/libcrypto.pc)
      file(STRINGS ${folder}/pkgconfig/libcrypto.pc besides REGEX "^Libs.private:")
      string(REGEX REPLACE "^Libs.private: *" "" besides "${besides}")
      separate_arguments(besides)
    endif()
    set(CMAKE_REQUIRED_INCLUDES ${OPENSSL_INCLUDE_DIR})
    set(CMAKE_REQUIRED_LIBRARIES ${folder}/libssl.a ${folder}/libcrypto.a ${besides})
    check_cxx_source_compiles("#include <openssl/ssl.h>
int main() { return SSL_CTX_new(TLS_method()) == nullptr; }" DDPRUN_OPENSSL_COPY_LINKS)
    if(NOT DDPRUN_OPENSSL_COPY_LINKS)
      set(missing "${folder}/libcrypto.a cannot be linked with what is here" PARENT_SCOPE)
      return()
    endif()
    set(missing "" PARENT_SCOPE)
    set(openssl_folder ${folder} PARENT_SCOPE)
    set(openssl_besides ${besides} PARENT_SCOPE)
    set(openssl_ids DDPRUN_OPENSSL_FOLDER="${folder}" DDPRUN_SSL_BUILD_ID="${ssl_id}"
        DDPRUN_CRYPTO_BUILD_ID="${crypto_id}" PARENT_SCOPE)
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/libcrypto.so.3 ${folder}/libcrypto.a)
endfunction()

# ddprun_openssl_copy(LIBRARY SOURCE): builds the module from SOURCE, and tells LIBRARY, which opens it, what it is a copy of.
function(ddprun_openssl_copy library source)
  set(missing "DDPRUN_OPENSSL_COPY is off")
  if(DDPRUN_OPENSSL_COPY AND NOT DDPRUN_FUZZ)
    ddprun_find_openssl_copy()
  endif()
  if(missing)
    message(STATUS "No copy of OpenSSL (a secret costs each start 2 ms more): ${missing}")
    return()
  endif()
  add_library(ddprun_openssl MODULE ${source})
  target_include_directories(ddprun_openssl PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(ddprun_openssl SYSTEM PRIVATE ${OPENSSL_INCLUDE_DIR})
  set_target_properties(ddprun_openssl PROPERTIES CXX_VISIBILITY_PRESET hidden)
  target_link_libraries(ddprun_openssl PRIVATE ${openssl_folder}/libssl.a ${openssl_folder}/libcrypto.a ${openssl_besides})
  # Bound to itself alone: a program may have the machine's OpenSSL, too.
  target_link_options(ddprun_openssl PRIVATE -Wl,--as-needed -Wl,-Bsymbolic -Wl,--exclude-libs,ALL -Wl,--gc-sections -Wl,-z,now)
  # A sixtieth of their size: there are 17,000. Not by mold 1.10, which leaves out what glibc asks for with them.
  set(packed -fuse-ld=bfd -Wl,-z,pack-relative-relocs)
  check_linker_flag(CXX "${packed}" DDPRUN_HAVE_PACKED_RELOCATIONS)
  if(DDPRUN_HAVE_PACKED_RELOCATIONS)
    target_link_options(ddprun_openssl PRIVATE ${packed})
  endif()
  file(RELATIVE_PATH modules /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR}/ddprun)
  target_compile_definitions(${library} PRIVATE ${openssl_ids} DDPRUN_MODULES_FROM_PROGRAM="${modules}")
  add_dependencies(${library} ddprun_openssl)
endfunction()
