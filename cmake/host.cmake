# The host device's library: every unit of TILERY_HOST_UNITS as C++, and the layer that runs them, by TILERY_HOST_CXX.

set(TILERY_HOST_CXX_MINIMUM 11) # of GCC, for __builtin_bit_cast; Clang has it in every version from this number on too
set(TILERY_HOST_FLAGS -std=c++17 -O2 -fPIC -fvisibility=hidden -DTILERY_HOST "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=")

execute_process(COMMAND "${TILERY_HOST_CXX}" -dumpversion OUTPUT_VARIABLE version ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT version VERSION_GREATER_EQUAL TILERY_HOST_CXX_MINIMUM)
  message(FATAL_ERROR "\n  The host device needs g++ or clang++ ${TILERY_HOST_CXX_MINIMUM} or later, and ${TILERY_HOST_CXX} is version '${version}'.\n"
    "  Set CUDAHOSTCXX to the path of a later one.")
endif()
message(STATUS "host compiler ${version}: ${TILERY_HOST_CXX}")

# The C++ run-time goes into the library, so that the wheel runs beside an older one. Not every system has it to give.
set(static -static-libstdc++ -static-libgcc)
file(WRITE "${PROJECT_BINARY_DIR}/host/static.cpp" "#include <thread>\nvoid run(void f()) { std::thread(f).join(); }\n")
execute_process(
  COMMAND "${TILERY_HOST_CXX}" -fPIC -shared -pthread ${static} static.cpp -o static.so
  WORKING_DIRECTORY "${PROJECT_BINARY_DIR}/host" OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(STATUS "no static libstdc++: the wheel will run only beside one that is as new as this machine's")
  set(static)
endif()
set(TILERY_HOST_LINK -shared -pthread ${static} -Wl,--exclude-libs,ALL -Wl,-s)

# A rule for the object of a source, whose path goes to `result`.
function(tilery_host_object name source result)
  set(object "${PROJECT_BINARY_DIR}/host/${name}.o")
  add_custom_command(
    OUTPUT "${object}"
    COMMAND "${TILERY_HOST_CXX}" ${TILERY_HOST_FLAGS} -I "${PROJECT_SOURCE_DIR}/templates"
      -MMD -MF "${object}.d" -MT "${object}" -c -x c++ "${source}" -o "${object}"
    DEPENDS "${source}" "${TILERY_HOST_CXX}"
    DEPFILE "${object}.d"
    COMMENT "g++ host ${name}"
    VERBATIM)
  set(${result} "${object}" PARENT_SCOPE)
endfunction()

function(tilery_host_library library)
  tilery_host_object(run "${PROJECT_SOURCE_DIR}/templates/host/run.cpp" objects)
  foreach(unit IN LISTS TILERY_HOST_UNITS)
    string(REPLACE "|" ";" unit "${unit}")
    list(GET unit 0 image)
    list(GET unit 1 source)
    tilery_host_object("${image}" "${generated}/${source}" object)
    list(APPEND objects "${object}")
  endforeach()
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/images/host")
  add_custom_command(
    OUTPUT "${library}"
    COMMAND "${TILERY_HOST_CXX}" ${objects} ${TILERY_HOST_LINK} -o "${library}"
    DEPENDS ${objects}
    COMMENT "g++ host kernels.so"
    VERBATIM)
  install(FILES "${library}" DESTINATION tilery/images/host)
endfunction()
