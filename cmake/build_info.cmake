# Which commit a program is built from, for --version: build_info.h in ${DDPRUN_BUILD_INFO_DIR}, written anew when HEAD
# moves. Not at each build: whoever edits would else link every program again for a word.
set(DDPRUN_BUILD_INFO_DIR ${PROJECT_BINARY_DIR}/generated)
execute_process(COMMAND git rev-parse --git-path logs/HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                OUTPUT_VARIABLE head_log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(head_log)
  get_filename_component(head_log ${head_log} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
endif()
if(NOT head_log OR NOT EXISTS ${head_log})
  set(head_log)  # An archive of the tree, or a clone that keeps no log.
endif()
add_custom_command(
  OUTPUT ${DDPRUN_BUILD_INFO_DIR}/build_info.h
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DBUILD_TYPE=${CMAKE_BUILD_TYPE}
          "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
          -DOUTPUT=${DDPRUN_BUILD_INFO_DIR}/build_info.h -P ${PROJECT_SOURCE_DIR}/cmake/write_build_info.cmake
  DEPENDS ${PROJECT_SOURCE_DIR}/cmake/write_build_info.cmake ${head_log}
  COMMENT "Asking git for the commit" VERBATIM)
add_custom_target(ddprun_build_info DEPENDS ${DDPRUN_BUILD_INFO_DIR}/build_info.h)

# ddprun_tells_build(LIBRARY FILE): FILE of LIBRARY includes build_info.h, and is compiled alone, as it is after each commit.
function(ddprun_tells_build library file)
  add_dependencies(${library} ddprun_build_info)
  set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON
    INCLUDE_DIRECTORIES ${DDPRUN_BUILD_INFO_DIR})
endfunction()
