# Compiler settings of the whole tree, and the functions that its CMakeLists files use.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)  # The CUDA module lies beside `train`.

# One -fPIC for libraries and programs alike: a precompiled header is only valid for one of
# -fPIC and -fPIE, and LibTorch's costs 14 s each.
add_compile_options(-fPIC -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers)
# Not with a sanitizer, whose checks make g++ 12 warn of what cannot be (strings that overlap).
if(DDPRUN_WERROR AND NOT DDPRUN_SANITIZE)
  add_compile_options(-Werror)
endif()

# GNU's linker takes a second for each program that holds LibTorch's headers' code, of which the tests
# have two dozen.
include(CheckLinkerFlag)
foreach(linker mold lld)
  check_linker_flag(CXX -fuse-ld=${linker} DDPRUN_HAVE_${linker})
  if(DDPRUN_HAVE_${linker})
    add_link_options(-fuse-ld=${linker})
    break()
  endif()
endforeach()

if(DDPRUN_SANITIZE)
  add_compile_options(-fsanitize=${DDPRUN_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DDPRUN_SANITIZE})
  if(DDPRUN_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-tsan)  # Asio's fences, which g++'s checker does not follow.
  endif()
  if(DDPRUN_SANITIZE MATCHES "address.*undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_library(ddprun_undefined_report OBJECT ${PROJECT_SOURCE_DIR}/tests/testing/undefined_report.cpp)
    link_libraries($<BUILD_INTERFACE:$<TARGET_OBJECTS:ddprun_undefined_report>>)
  endif()
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
  # It has C++20's coroutines, but does not say so to the standard library and to Asio.
  add_compile_definitions(__cpp_impl_coroutine=201902L ASIO_HAS_CO_AWAIT ASIO_HAS_STD_COROUTINE)
  if(DDPRUN_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize=function)  # It breaks their code generation.
  endif()
endif()

if(DDPRUN_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    message(FATAL_ERROR "DDPRUN_FUZZ needs clang, whose libFuzzer it uses: scripts/fuzz, or "
                        "cmake --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)  # So that libFuzzer sees which code was reached.
  add_compile_options(-Wno-pass-failed)  # -O1 vectorises no loop, and the warnings bury a finding.
endif()

find_program(CCACHE ccache)
if(CCACHE)
  # The sloppiness lets ccache reuse objects that were built with a precompiled header. DEPEND: it learns
  # from the compiler itself what was included, and does not run the preprocessor first, which for a
  # unit with a precompiled header reads all of that header's text again: 2.2 s of 17 with LibTorch.
  # BASEDIR: what another build folder beside this one compiles again is known. INODECACHE: so is the hash of a header
  # that did not change, such as LibTorch's precompiled one, 1 to 2 s for each unit with it.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
      CCACHE_BASEDIR=${PROJECT_BINARY_DIR} CCACHE_INODECACHE=1 ${CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-fpch-preprocess)
  endif()
endif()

# g++ spends most of a unit on the headers that it shares with its neighbours, so units are compiled
# several at a time: this many of a library or a test program. More save little and make what is touched last wait; but
# with LibTorch, of which each compilation instantiates 4 s of templates before it comes to our code, and with
# Asio and JSON, of which it is 1 to 2 s.
option(DDPRUN_UNITY "Compile several units of a library or a test program at a time" ON)
set(DDPRUN_UNITY_UNITS 6 CACHE STRING "How many")
set(DDPRUN_UNITY_NETWORK_UNITS 12 CACHE STRING "How many that include Asio or JSON")
set(DDPRUN_UNITY_TORCH_UNITS 12 CACHE STRING "How many that include LibTorch")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # By itself g++ looks for memory to use again whenever it has taken 30 % more: a tenth of its time, and more with
  # LibTorch. So it is 0.1 GB more of a unit's 1.5.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-expand=300>
                      $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=400000>)
endif()
if(DDPRUN_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ takes an anonymous namespace for shared by several units as soon as the file is included.
  add_compile_options(-Wno-subobject-linkage)
endif()

# ddprun_library(NAME SOURCES a.cpp ... [LINKS lib ...] [COLD]): a static library; includes are written
# from the root of the tree ("rendezvous/store/store.h"). COLD: runs at human pace, and is built with
# -O1, which halves what g++ does after parsing Asio's, JSON's and LibTorch's templates.
function(ddprun_library name)
  cmake_parse_arguments(ARG "COLD" "" "SOURCES;LINKS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  if(ARG_COLD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # With -O1 g++ 12 inlines half of a std::string and then warns of what it does not see.
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1 -Wno-maybe-uninitialized>)
  elseif(ARG_COLD)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                            $<INSTALL_INTERFACE:include/ddprun>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC ${ARG_LINKS})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${DDPRUN_UNITY}
                        UNITY_BUILD_BATCH_SIZE ${DDPRUN_UNITY_UNITS})
endfunction()

# ddprun_network_library(NAME ...): the same, COLD, for code of which most includes Asio, JSON or spdlog; it
# shares one precompiled header, rendezvous/costly_headers.h. With g++ alone: packages are made by zig, with
# which that was not tried, and few fuzz targets take these libraries.
function(ddprun_network_library name)
  ddprun_library(${name} ${ARGN} COLD)
  # Of all of them, since a precompiled header is valid for one set of these libraries' macros alone.
  target_link_libraries(${name} PUBLIC asio nlohmann_json::nlohmann_json spdlog::spdlog)
  set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE ${DDPRUN_UNITY_NETWORK_UNITS})
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    return()
  endif()
  if(NOT TARGET ddprun_network_pch)
    file(WRITE ${PROJECT_BINARY_DIR}/network_pch.cpp "// Holds the precompiled headers of Asio, JSON and spdlog.\n")
    add_library(ddprun_network_pch STATIC ${PROJECT_BINARY_DIR}/network_pch.cpp)
    target_include_directories(ddprun_network_pch PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(ddprun_network_pch PUBLIC asio nlohmann_json::nlohmann_json spdlog::spdlog)
    target_precompile_headers(ddprun_network_pch PRIVATE ${PROJECT_SOURCE_DIR}/rendezvous/costly_headers.h)
    target_compile_options(ddprun_network_pch PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  target_precompile_headers(${name} REUSE_FROM ddprun_network_pch)
endfunction()

# ddprun_torch_library(NAME ...): the same for code that includes LibTorch; it shares one
# precompiled header, worker/torch/libtorch.h. All of it is COLD: loops over elements are LibTorch's, or in libraries
# without it (ddprun_kernels, ddprun_data, ddprun_communicator). A precompiled header is valid for one
# level alone, and tests with LibTorch are built with -O1 too.
function(ddprun_torch_library name)
  ddprun_library(${name} ${ARGN} COLD)
  target_link_libraries(${name} PUBLIC LibTorch::torch)
  set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE ${DDPRUN_UNITY_TORCH_UNITS})
  if(NOT TARGET ddprun_torch_pch)
    file(WRITE ${PROJECT_BINARY_DIR}/torch_pch.cpp "// Holds the precompiled LibTorch header.\n")
    add_library(ddprun_torch_pch STATIC ${PROJECT_BINARY_DIR}/torch_pch.cpp)
    target_include_directories(ddprun_torch_pch PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(ddprun_torch_pch PUBLIC LibTorch::torch)
    target_precompile_headers(ddprun_torch_pch PRIVATE ${PROJECT_SOURCE_DIR}/worker/torch/libtorch.h)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      target_compile_options(ddprun_torch_pch PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
  endif()
  target_precompile_headers(${name} REUSE_FROM ddprun_torch_pch)
endfunction()

# ddprun_test(NAME SOURCES a_test.cpp ... [LINKS lib ...] [TIMEOUT seconds on an idle machine] [SERIAL] [FIRST] [TORCH]): a
# Catch2 program whose every TEST_CASE is a ctest test. A test that prints "SKIPPED: why" is
# reported as skipped. SERIAL: needs the machine for itself. FIRST: waits
# for minutes, and is begun before the others, which then run meanwhile. TORCH: includes LibTorch.
function(ddprun_test name)
  cmake_parse_arguments(ARG "SERIAL;FIRST;TORCH" "TIMEOUT" "SOURCES;LINKS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(ARG_TORCH)  # As a library, so that it can share the precompiled header.
    ddprun_torch_library(${name}_cases SOURCES ${ARG_SOURCES} LINKS ddprun_test_main ${ARG_LINKS})
    # Fewer at a time: each test file has a small net or a step() of its own, by the same names.
    set_target_properties(${name}_cases PROPERTIES UNITY_BUILD_BATCH_SIZE ${DDPRUN_UNITY_UNITS})
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp "// All cases are in ${name}_cases.\n")
    add_executable(${name} ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
    target_link_libraries(${name} PRIVATE -Wl,--whole-archive ${name}_cases -Wl,--no-whole-archive)
  else()
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE ddprun_test_main ${ARG_LINKS})
    target_precompile_headers(${name} REUSE_FROM ddprun_catch_pch)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ${DDPRUN_UNITY}
                          UNITY_BUILD_BATCH_SIZE ${DDPRUN_UNITY_UNITS})
  endif()
  # ctest's limit is a last resort: each wait in a test has its own, stretched on a busy machine
  # (tests/testing/patience.h), and says what did not come.
  math(EXPR last_resort "5 * ${ARG_TIMEOUT}")
  set(properties SKIP_REGULAR_EXPRESSION "SKIPPED: " TIMEOUT ${last_resort})
  if(ARG_SERIAL)
    list(APPEND properties RUN_SERIAL TRUE)
  endif()
  if(ARG_FIRST)
    list(APPEND properties COST 100)
  endif()
  catch_discover_tests(${name} TEST_PREFIX "${name}: " PROPERTIES ${properties})
endfunction()

# ddprun_cuda_source(MODULE FILE): compiles FILE by nvcc into MODULE. By a command of its own: CMake's language CUDA would
# take the warnings of add_compile_options for nvcc's, which knows none of them, and try out the compiler in
# each configuration. For devices from compute capability 7.5 (T4) on, as LibTorch's: that, 8.0 (A100) and 9.0 (H100) as they are, newer ones by
# what the driver compiles when the module is first used.
function(ddprun_cuda_source module file)
  get_filename_component(name ${file} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  # No multiplication and addition in one but where the code says so: the host's loops have the same bits.
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -c ${CMAKE_CURRENT_SOURCE_DIR}/${file} -o ${object} -MD -MF ${object}.d
            -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIC,-fvisibility=hidden
            -I ${PROJECT_SOURCE_DIR} -gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80
            -gencode arch=compute_90,code=[sm_90,compute_90]
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file} DEPFILE ${object}.d
    COMMENT "nvcc ${file}" VERBATIM)
  add_custom_target(${module}_${name} DEPENDS ${object})
  add_dependencies(${module} ${module}_${name})
  target_link_libraries(${module} PRIVATE ${object})
endfunction()
