# Everything that is not ours, with the version it was built against and why it is here.
# Packages are Debian's and Ubuntu's; scripts/setup installs them.

# A tree that takes this one in links what the libraries link.
if(NOT PROJECT_IS_TOP_LEVEL)
  set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
endif()

find_package(Threads REQUIRED)
find_package(CLI11 2.1 REQUIRED)           # Command lines: grouped help, checks. libcli11-dev 2.1.2
find_package(spdlog 1.10 REQUIRED)         # The programs' own messages, on stderr. libspdlog-dev 1.10
find_package(nlohmann_json 3.11 REQUIRED)  # Control messages, reports, metrics. nlohmann-json3-dev 3.11.2
find_package(ZLIB REQUIRED)                # MNIST's .gz files. zlib1g-dev 1.2.13
# TLS 1.3 and key derivation for jobs of several hosts, in ddprun only the headers: the library is opened at run
# time, where a job needs it, or a copy of it that opens faster (cmake/openssl_copy.cmake). Also SHA-256 of data
# files. libssl-dev 3.0
find_package(OpenSSL 3 REQUIRED)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)  # Checksums of checkpoints and lists. libxxhash-dev 0.8.1

if(DDPRUN_WITH_TORCH OR DDPRUN_BUILD_TESTS)
  find_package(JPEG REQUIRED)  # Images; libjpeg-turbo, for its cut and reduced decoding. libjpeg-dev 2.1.5
  # On a GPU nvJPEG may take its place: opened at run time, without a header (trainer/device/nvjpeg.h).
  # Images too: ImageNet has a PNG among its JPEGs, and folders that torchvision reads have more of
  # them. libpng-dev 1.6.39
  find_package(PNG 1.6 REQUIRED)
endif()

# train --download, and etcd as a tie-breaker: HTTP with TLS, proxies and redirects is not to be written
# anew. Only the header: the library is opened at run time, where there is one. libcurl4-openssl-dev 7.88
find_path(DDPRUN_CURL_INCLUDE curl/curl.h)
if(NOT DDPRUN_CURL_INCLUDE)
  message(STATUS "No train --download, and no etcd: they need libcurl's header (libcurl4-openssl-dev)")
endif()

# Sockets, timers, signals, pidfds in one event loop with coroutines. libasio-dev 1.22.1
find_path(ASIO_INCLUDE asio.hpp REQUIRED)
add_library(asio INTERFACE)
target_include_directories(asio SYSTEM INTERFACE ${ASIO_INCLUDE})
# Asio 1.22 looks for aligned_alloc before it includes the header that says so: whether it is used
# would depend on the order of includes, and a block allocated in one file be freed in another.
target_compile_definitions(asio INTERFACE ASIO_SEPARATE_COMPILATION ASIO_NO_DEPRECATED
                                          ASIO_DISABLE_STD_ALIGNED_ALLOC)
# What of it is no template is compiled once. As the header-only library that it also is, it put its
# event loop into each of our units: a tenth of all code that ddprun's build made.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/asio_compiled.cpp CONTENT "#include <asio/impl/src.hpp>\n")
add_library(ddprun_asio STATIC ${PROJECT_BINARY_DIR}/asio_compiled.cpp)
target_compile_features(ddprun_asio PUBLIC cxx_std_20)
target_link_libraries(ddprun_asio PUBLIC $<BUILD_INTERFACE:asio>)
target_link_libraries(asio INTERFACE Threads::Threads $<LINK_ONLY:ddprun_asio>)

if(DDPRUN_BUILD_TESTS)
  find_package(Catch2 REQUIRED)  # Tests; 2.13 (Debian 12) and 3 (Ubuntu 24.04). catch2
  list(APPEND CMAKE_MODULE_PATH ${Catch2_DIR})
  include(Catch)
endif()

# Tensors, autograd, CPU kernels. LibTorch 2.11.0, as unpacked from the PyPI wheel `torch`; newer
# ones up to 2.15.0 do. Older ones do not tell a stream's handle without CUDA's libraries.
if(DDPRUN_WITH_TORCH)
  find_package(LibTorch 2.11 REQUIRED)
endif()

# The GPU parts: optional, and only compiled and linked here. CUDA >= 12, NCCL >= 2.27
if(DDPRUN_WITH_CUDA)
  find_package(CUDAToolkit QUIET)
  find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_TARGET_DIR}/lib)
  if(CUDAToolkit_FOUND AND NCCL_INCLUDE AND NCCL_LIBRARY)
    set(DDPRUN_HAVE_CUDA ON)
  else()
    message(STATUS "No CUDA module: it needs a CUDA toolkit and NCCL (CPU training works without)")
  endif()
endif()

# train --backend mpi: optional, and only compiled and linked here. Open MPI >= 4. libopenmpi-dev 4.1
if(DDPRUN_WITH_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # MPI's C interface, from C++.
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(DDPRUN_HAVE_MPI ON)
  else()
    message(STATUS "No MPI module: it needs Open MPI (libopenmpi-dev; scripts/setup --mpi)")
  endif()
endif()
