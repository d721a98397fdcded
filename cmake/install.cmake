# What `cmake --install` puts where, besides the launcher's own files (launcher/CMakeLists.txt):
#
#   bin/train with its man page and completions in share/, lib/*.a, lib/ddprun/ (modules that are
#   opened at run time), include/ddprun/worker/..., and lib/cmake/ddprun/, by which other projects
#   find all of it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(DDPRUN_MODULE_DIR ${CMAKE_INSTALL_LIBDIR}/ddprun)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ddprun)
set(header_dir ${CMAKE_INSTALL_INCLUDEDIR}/ddprun)

# In this tree and in others the targets have the same names.
add_library(ddprun::worker ALIAS ddprun_communicator)
set_target_properties(ddprun_communicator PROPERTIES EXPORT_NAME worker)
set_target_properties(ddprun_worker_env PROPERTIES EXPORT_NAME worker_env)
set_target_properties(ddprun_store_client PROPERTIES EXPORT_NAME store_client)
set_target_properties(ddprun_store PROPERTIES EXPORT_NAME store)
set_target_properties(ddprun_asio PROPERTIES EXPORT_NAME asio)
set_target_properties(ddprun_secure PROPERTIES EXPORT_NAME secure)
install(TARGETS ddprun_communicator ddprun_worker_env ddprun_store_client ddprun_secure ddprun_store ddprun_asio
        EXPORT ddprunWorker ARCHIVE COMPONENT development)
install(EXPORT ddprunWorker FILE ddprunWorkerTargets.cmake NAMESPACE ddprun::
        DESTINATION ${package_dir} COMPONENT development)
# Those that a training program includes. How the communicators work inside is not among them.
foreach(header communicator communicator_modules declare_failure error_file meeting membership network_interface owning_process progress_note progress_page restart_memory state_lead
               wait_for_rank worker_env)
  install(FILES worker/${header}.h DESTINATION ${header_dir}/worker COMPONENT development)
endforeach()
foreach(header environment hosted_store host/interface_addresses long_wait contract/progress_page store_client)
  cmake_path(GET header PARENT_PATH room)
  install(FILES rendezvous/${header}.h DESTINATION ${header_dir}/rendezvous/${room} COMPONENT development)
endforeach()

# In the build as installed: CMake would otherwise make room for the other path by empty ones, which
# the loader takes for the current folder. Who may write there could have his library loaded.
foreach(module ddprun_cuda ddprun_mpi)
  if(TARGET ${module})
    set_target_properties(${module} PROPERTIES
      INSTALL_RPATH_USE_LINK_PATH ON
      BUILD_WITH_INSTALL_RPATH ON)
    if(DDPRUN_WITH_TORCH AND module STREQUAL ddprun_cuda)
      cmake_path(GET NCCL_LIBRARY PARENT_PATH nccl)  # As LibTorch, it may be in .deps/ (see train).
      set_target_properties(${module} PROPERTIES
        INSTALL_RPATH "${DDPRUN_TORCH}/lib;${nccl};${CMAKE_INSTALL_RPATH}")
    endif()
    install(TARGETS ${module} LIBRARY DESTINATION ${DDPRUN_MODULE_DIR} COMPONENT train)
  endif()
endforeach()

if(TARGET ddprun_openssl)
  install(TARGETS ddprun_openssl LIBRARY DESTINATION ${DDPRUN_MODULE_DIR} COMPONENT ddprun)
endif()

if(DDPRUN_WITH_TORCH)
  add_library(ddprun::ddp ALIAS ddprun_ddp)
  set_target_properties(ddprun_ddp PROPERTIES EXPORT_NAME ddp)
  install(TARGETS ddprun_ddp EXPORT ddprunDdp ARCHIVE COMPONENT development)
  install(EXPORT ddprunDdp FILE ddprunDdpTargets.cmake NAMESPACE ddprun::
          DESTINATION ${package_dir} COMPONENT development)
  install(DIRECTORY worker/torch DESTINATION ${header_dir}/worker COMPONENT development
          FILES_MATCHING PATTERN "*.h")
  install(FILES cmake/FindLibTorch.cmake DESTINATION ${package_dir} COMPONENT development)
  # LibTorch is used where it lies. By name, because CMake leaves out paths inside this tree.
  set_target_properties(train PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${DDPRUN_MODULE_DIR};${DDPRUN_TORCH}/lib;${CMAKE_INSTALL_RPATH}"
    INSTALL_RPATH_USE_LINK_PATH ON
    BUILD_WITH_INSTALL_RPATH ON)  # As above.
  install(TARGETS train RUNTIME COMPONENT train)
  install(FILES docs/train.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT train)
  install(FILES completions/train.bash RENAME train
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT train)
  install(FILES completions/_train DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions
          COMPONENT train)
  install(FILES completions/train.fish
          DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT train)
endif()

configure_package_config_file(cmake/ddprunConfig.cmake.in ${PROJECT_BINARY_DIR}/ddprunConfig.cmake
  INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_BINDIR DDPRUN_MODULE_DIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ddprunConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ddprunConfig.cmake ${PROJECT_BINARY_DIR}/ddprunConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)
