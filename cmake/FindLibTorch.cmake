# LibTorch::torch      torch_cpu and c10: all that `train` itself is linked to
# LibTorch::torch_cuda torch_cuda and c10_cuda, for the CUDA module only
#
# The wheel's own TorchConfig.cmake insists on a whole CUDA toolkit, and links every program to the
# CUDA libraries, which costs each start 0.1 s. These targets are made from the files instead.

# Looked for each time, or another DDPRUN_TORCH would leave a build folder with the first one.
find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h
          PATHS ${DDPRUN_TORCH}/include NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_CPU torch_cpu PATHS ${DDPRUN_TORCH}/lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10 c10 PATHS ${DDPRUN_TORCH}/lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_CUDA torch_cuda PATHS ${DDPRUN_TORCH}/lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10_CUDA c10_cuda PATHS ${DDPRUN_TORCH}/lib NO_DEFAULT_PATH NO_CACHE)

# "2.11": what its C++ interface goes by. In newer ones the numbers lie in the second file.
set(LibTorch_VERSION "")
foreach(file torch/csrc/api/include/torch/version.h torch/headeronly/version.h)
  if(LibTorch_INCLUDE_DIR AND EXISTS "${LibTorch_INCLUDE_DIR}/${file}")
    file(STRINGS "${LibTorch_INCLUDE_DIR}/${file}" lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR) ")
    if(lines MATCHES "_MAJOR ([0-9]+);.*_MINOR ([0-9]+)")
      set(LibTorch_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
    endif()
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU LibTorch_C10 LibTorch_INCLUDE_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "no LibTorch ${LibTorch_FIND_VERSION} or newer in ${DDPRUN_TORCH}: run scripts/setup, or give -DDDPRUN_TORCH=<folder with include/ and lib/>, or build only the launcher with -DDDPRUN_WITH_TORCH=OFF")

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  add_library(LibTorch::torch INTERFACE IMPORTED)
  target_include_directories(LibTorch::torch SYSTEM INTERFACE
    ${LibTorch_INCLUDE_DIR} ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
  # The wheel's libraries need libcudart and libcupti, which lie beside it and are found at run
  # time through its own RPATH; the linker need not see them.
  target_link_libraries(LibTorch::torch INTERFACE ${LibTorch_CPU} ${LibTorch_C10}
    -Wl,--allow-shlib-undefined Threads::Threads)
  if(LibTorch_CUDA AND LibTorch_C10_CUDA)
    add_library(LibTorch::torch_cuda INTERFACE IMPORTED)
    target_link_libraries(LibTorch::torch_cuda INTERFACE
      LibTorch::torch -Wl,--no-as-needed ${LibTorch_CUDA} ${LibTorch_C10_CUDA} -Wl,--as-needed)
  endif()
endif()
