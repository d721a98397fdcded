# cmake -DSOURCE=DIR -DBUILD_TYPE=NAME -DCOMPILER=NAME -DOUTPUT=FILE -P write_build_info.cmake
execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
string(TOLOWER "${BUILD_TYPE}" type)
file(WRITE ${OUTPUT} "// Of what this is built; cmake/write_build_info.cmake writes it.
#define DDPRUN_BUILD_INFO \"commit ${commit}, ${type} build, ${COMPILER}\"
")
