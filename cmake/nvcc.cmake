# Finds nvcc and its host compiler. Sets TILERY_NVCC, TILERY_NVCC_VERSION and TILERY_HOST_CXX.
# Order: $TILERY_NVCC (must be usable), $CUDA_HOME, the nvcc wheel beside this Python, PATH.

set(TILERY_NVCC_MINIMUM 13.0)

function(tilery_nvcc_version nvcc result)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0 AND text MATCHES "release ([0-9]+\\.[0-9]+)")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

# In the namespace package nvidia.cu13, not through cuda-pathfinder: that one misses pip's isolated build environments.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import nvidia.cu13 as m; print(';'.join(p + '/bin/nvcc' for p in m.__path__), end='')"
  OUTPUT_VARIABLE wheel_nvccs ERROR_QUIET)
find_program(path_nvcc nvcc PATHS ENV PATH NO_CACHE NO_DEFAULT_PATH)

set(candidates)
if(NOT "$ENV{TILERY_NVCC}" STREQUAL "")
  list(APPEND candidates "TILERY_NVCC|$ENV{TILERY_NVCC}")
else()
  if(NOT "$ENV{CUDA_HOME}" STREQUAL "")
    list(APPEND candidates "CUDA_HOME|$ENV{CUDA_HOME}/bin/nvcc")
  endif()
  foreach(nvcc IN LISTS wheel_nvccs)
    if(EXISTS "${nvcc}")
      list(APPEND candidates "wheel|${nvcc}")
    endif()
  endforeach()
  if(path_nvcc)
    list(APPEND candidates "PATH|${path_nvcc}")
  endif()
endif()

set(TILERY_NVCC)
set(rejections)
foreach(candidate IN LISTS candidates)
  string(REGEX MATCH "^([^|]+)\\|(.*)$" _ "${candidate}")
  set(origin "${CMAKE_MATCH_1}")
  set(nvcc "${CMAKE_MATCH_2}")
  tilery_nvcc_version("${nvcc}" version)
  if(version AND version VERSION_GREATER_EQUAL TILERY_NVCC_MINIMUM)
    set(TILERY_NVCC "${nvcc}")
    set(TILERY_NVCC_VERSION "${version}")
    message(STATUS "nvcc ${version} from ${origin}: ${nvcc}")
    break()
  elseif(version)
    set(reason "${origin}: ${nvcc} is version ${version}")
  elseif(EXISTS "${nvcc}")
    set(reason "${origin}: ${nvcc} does not run")
  else()
    set(reason "${origin}: there is no ${nvcc}")
  endif()
  message(STATUS "nvcc rejected, ${reason}")
  string(APPEND rejections "\n    ${reason}")
endforeach()

if(NOT TILERY_NVCC)
  if(NOT rejections)
    set(rejections "\n    no nvcc in CUDA_HOME, beside this Python (${Python_EXECUTABLE}) or in PATH")
  endif()
  message(FATAL_ERROR "\n  tilery needs nvcc ${TILERY_NVCC_MINIMUM} or later to compile its kernels. Found:${rejections}\n"
    "  Set TILERY_NVCC to the path of an nvcc, or leave it unset and install one beside this Python:\n"
    "    pip install \"cuda-toolkit[nvcc,cccl]==13.0.*\"")
endif()
if(version VERSION_GREATER TILERY_NVCC_MINIMUM)
  message(STATUS "PTX images (compute_NN) of nvcc ${version} need a driver for CUDA ${version} or later")
endif()

# nvcc preprocesses through it, even for device code alone.
find_program(TILERY_HOST_CXX NAMES $ENV{CUDAHOSTCXX} $ENV{NVCC_CCBIN} g++ PATHS ENV PATH NO_CACHE NO_DEFAULT_PATH)
if(NOT TILERY_HOST_CXX)
  message(FATAL_ERROR "\n  nvcc needs a host C++ compiler, and there is no g++ in PATH.\n"
    "  Install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++) or set CUDAHOSTCXX to its path.")
endif()
