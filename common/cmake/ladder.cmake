# Builds the ladder: a library for the harness, one for each machine (the simulator and the GPU),
# and a program for each rung, which add_rung() below defines. CMakeLists.txt includes this file.

set(LADDER_CUDA AUTO CACHE STRING
  "Build the GPU half? ON, OFF or AUTO (in CI, and if a GPU and a CUDA Toolkit are found)")
find_package(GTest QUIET)
option(LADDER_TESTS "The tests, which need GoogleTest (default: ON where it is found)" ${GTest_FOUND})
option(LADDER_SANITIZE "Address and undefined-behaviour sanitizers" OFF)

set(ci $ENV{CI})  # CI services set it; empty, 0, OFF and the like count as no
if(NOT CMAKE_BUILD_TYPE)
  message(STATUS "build type: Release, because none was given")
  set(CMAKE_BUILD_TYPE Release)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# -Og compiles faster than -O1 and suffices for code that takes little of a run's time. --trace
# finds a kernel's lines in the line tables of -g1. They are in DWARF 4, because addr2line does not
# find functions that clang inlined in DWARF 5.
set(CMAKE_CXX_FLAGS_RELEASE "-Og -gdwarf-4 -g1 -DNDEBUG")
set(hot $<$<CONFIG:Release>:-O3>)   # the simulator and the reference
set(warm $<$<CONFIG:Release>:-O1>)  # the first rungs, whose kernels touch single elements
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

# Check the minimum versions, which BUILDING.md lists.
include(CheckCXXSourceCompiles)
check_cxx_source_compiles("#include <source_location>
  int main() { return std::source_location::current().line() != 2; }" LADDER_CXX20)
if(NOT LADDER_CXX20)
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER} is too old: it must be g++ 11, clang 16 or newer; "
    "choose another with CXX=clang++-16 scripts/run")
endif()
find_package(fmt 8.1 QUIET)
if(NOT fmt_FOUND)
  message(FATAL_ERROR
    "fmt 8.1 or newer is missing: install it (Debian, Ubuntu: apt-get install libfmt-dev; without "
    "root: common/BUILDING.md)")
endif()
# The system's libraries do not link with another C++ library or for another processor. In that case
# use fmt's headers and GoogleTest's sources.
set(CMAKE_REQUIRED_LIBRARIES fmt::fmt)
check_cxx_source_compiles("#include <fmt/format.h>
  int main() { return fmt::format(\"{}\", 1) != \"1\"; }" LADDER_FMT_LINKS)
unset(CMAKE_REQUIRED_LIBRARIES)
set(fmt fmt::fmt)
if(NOT LADDER_FMT_LINKS)
  set(fmt fmt::fmt-header-only)
endif()
if(LADDER_TESTS AND NOT LADDER_FMT_LINKS)
  add_subdirectory(/usr/src/googletest googletest EXCLUDE_FROM_ALL)
  target_compile_options(gtest PRIVATE -w)
elseif(LADDER_TESTS AND NOT GTest_FOUND)
  message(FATAL_ERROR
    "GoogleTest is missing: install it (Debian, Ubuntu: apt-get install libgtest-dev)")
endif()
find_package(Threads REQUIRED)
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)

# CUDA. The cache remembers the capability of a GPU that answered, because a GPU may not answer on
# every machine that shares a build folder. If the GPU half is left out, `no_gpu` says why and what
# to do, and the programs print that text.
string(TOUPPER "${LADDER_CUDA}" LADDER_CUDA)
if(NOT LADDER_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LADDER_CUDA is ${LADDER_CUDA}: it must be AUTO, ON or OFF")
endif()
if(NOT LADDER_CUDA STREQUAL OFF)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/common/machine/gpu/compute_capability.py
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(found OR NOT DEFINED LADDER_GPU_FOUND)
    set(LADDER_GPU_FOUND "${found}" CACHE INTERNAL "Compute capability of the GPU, 90; empty: none")
  endif()
endif()
string(REGEX REPLACE "^([0-6].|7[0-4])$" "" gpu "${LADDER_GPU_FOUND}")  # below 7.5: none
if(LADDER_CUDA STREQUAL OFF)
  set(no_gpu "LADDER_CUDA is OFF")
elseif(LADDER_CUDA STREQUAL AUTO AND NOT gpu AND NOT ci)
  string(CONCAT no_gpu "no GPU of compute capability 7.5 or newer answered when it was built "
    "(LADDER_CUDA=ON scripts/run builds it anyway)")
elseif("${PROJECT_SOURCE_DIR}${PROJECT_BINARY_DIR}" MATCHES "[$`]")
  set(no_gpu "nvcc accepts no path with a dollar sign or a backquote (move the clone)")
elseif(CMAKE_VERSION VERSION_LESS 3.25.1)
  string(CONCAT no_gpu "it needs CMake 3.25.1 or newer, and this was ${CMAKE_VERSION} "
    "(python3 -m pip install cmake, then scripts/run)")
else()
  set(nvcc $ENV{CUDACXX} nvcc)
  list(GET nvcc 0 nvcc)
  find_program(CMAKE_CUDA_COMPILER NAMES ${nvcc})
  if(NOT CMAKE_CUDA_COMPILER)
    string(CONCAT no_gpu "there was no program called ${nvcc} when it was built (install the CUDA "
      "Toolkit, or export CUDACXX=/path/of/nvcc, that path alone, then scripts/run)")
  elseif(NOT LADDER_NVCC_WORKS)
    # If nvcc did not work, enable_language would stop the build without giving a reason.
    set(probe ${PROJECT_BINARY_DIR}/stubs/probe)
    file(WRITE ${probe}.cu "#include <cuda_bf16.h>\n#include <string>\n"
      "#if CUDART_VERSION < 12010\n#error this CUDA is older than 12.1\n#endif\nint main() {}\n")
    set(host $ENV{CUDAHOSTCXX})
    list(TRANSFORM host PREPEND -ccbin=)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} ${host} -std=c++20 -o ${probe} ${probe}.cu
      RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(status)  # keep the first error, in characters that need no quoting
      string(REGEX MATCH "(error|fatal|cannot)[^\n]*" why "${said}${status}")
      string(REGEX REPLACE "The nvcc flag.*|[^A-Za-z0-9.,:()!'/_+-]+" " " why "${why}")
      string(STRIP "${why}" why)
      string(CONCAT no_gpu "${CMAKE_CUDA_COMPILER} could not compile: ${why} (export "
        "CUDACXX=/path/of/another/nvcc, or CUDAHOSTCXX=g++-12, a host compiler that it takes, "
        "then scripts/run)")
    else()
      set(LADDER_NVCC_WORKS ON CACHE INTERNAL "nvcc compiles and links")
    endif()
  endif()
endif()
if(no_gpu)
  message(STATUS "gpu: left out, because ${no_gpu}")
else()
  # enable_language needs them: the GPU's or, if none answered, 8.0 (with PTX) and 9.0a; in CI 9.0a.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    if(gpu)
      execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code OUTPUT_VARIABLE codes)
      string(REPLACE "90" "90a" CMAKE_CUDA_ARCHITECTURES ${gpu}-real)
      if(NOT codes MATCHES "sm_${gpu}\n")  # newer than the Toolkit: the driver compiles the PTX
        set(CMAKE_CUDA_ARCHITECTURES 80)
      endif()
    elseif(ci)
      set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
    endif()
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # Leave out the folders of nvcc's host compiler, whose C++ library may be too old for ours.
  list(FILTER CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES EXCLUDE REGEX "/gcc/")
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 lacks this for nvcc
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  # nvcc passes its -O only to the host compiler; it always compiles GPU code with -O3. In CI
  # without a GPU the GPU code never runs: it is compiled only for diagnostics, as fast as possible
  # and for one type and head size (LADDER_ONE_KERNEL), except that the Hopper steps are optimised,
  # because machine_code_test reads their machine code.
  set(CMAKE_CUDA_FLAGS_RELEASE "-DNDEBUG -Xcompiler=-O1")
  if(ci AND NOT gpu)
    set(CMAKE_CUDA_FLAGS_RELEASE "-DNDEBUG -Xcompiler=-O0")
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.9)
      set(compiles_only -Ofc=max)
    endif()
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(LADDER_GPU ON)
  message(STATUS "gpu: CUDA ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
endif()

# A warning is an error only in CI, so that it does not stop a reader's experiments.
if(ci AND NOT DEFINED CMAKE_COMPILE_WARNING_AS_ERROR)
  set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
endif()
add_library(ladder_flags INTERFACE)
target_include_directories(ladder_flags INTERFACE ${PROJECT_SOURCE_DIR}/common)
target_compile_definitions(ladder_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:LADDER_SIM>)
# -fno-fast-math overrides CXXFLAGS, because NaN, infinity and subnormals must keep their meaning.
target_link_options(ladder_flags INTERFACE $<$<LINK_LANGUAGE:CXX>:-fno-fast-math>)
target_compile_options(ladder_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers
    -Wno-unknown-pragmas -fno-fast-math -ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -lineinfo
    -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-fno-fast-math,-ffp-contract=off>)
target_link_libraries(ladder_flags INTERFACE ${fmt} Threads::Threads)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC 12 and 13 warn of a nonexistent overlap in std::string's operator+ (GCC bug 105651).
  target_compile_options(ladder_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wshadow=local>
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-restrict>)
else()
  # `#pragma unroll` is meant for nvcc; clang warns about each loop that it cannot unroll. Clang 19
  # warns that libstdc++ 12 uses deprecated functions.
  target_compile_options(ladder_flags INTERFACE -Wno-pass-failed -Wno-deprecated-declarations)
endif()
# GCC 12.2 for 64-bit ARM fails with an internal error when it vectorises a summation loop.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13 AND
    CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  target_compile_options(ladder_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-tree-vectorize>)
endif()
if(LADDER_SANITIZE)
  target_compile_definitions(ladder_flags INTERFACE LADDER_SANITIZE _GLIBCXX_ASSERTIONS)
  target_compile_options(ladder_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all)
  target_link_options(ladder_flags INTERFACE -fsanitize=address,undefined)
endif()

# Precompile the headers that most C++ sources include; parsing them takes a second per source.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/stubs/none.cpp CONTENT "" @ONLY)
# GCC accepts a precompiled header only at the optimisation level that it was compiled with.
foreach(name ladder_pch ladder_pch_warm)
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/stubs/none.cpp)
  target_link_libraries(${name} PRIVATE ladder_flags)
  target_precompile_headers(${name} PRIVATE <machine/machine.h> <fmt/format.h>)
endforeach()
target_compile_options(ladder_pch_warm PRIVATE ${warm})
set(precompiled ladder_pch)  # for ladder_kernels

string(REGEX REPLACE "([[*?])" "[\\1]" here "${PROJECT_SOURCE_DIR}")  # for GLOB: [, * and ? quoted
file(GLOB sim_sources CONFIGURE_DEPENDS ${here}/common/machine/sim/*.cpp)
add_library(ladder_sim STATIC ${sim_sources})
target_link_libraries(ladder_sim PUBLIC ladder_flags)
target_compile_options(ladder_sim PRIVATE ${hot})

if(LADDER_GPU)
  file(GLOB gpu_sources CONFIGURE_DEPENDS ${here}/common/machine/gpu/*.cpp
    ${here}/common/machine/gpu/*.cu)
  add_library(ladder_gpu STATIC ${gpu_sources})
  target_link_libraries(ladder_gpu PUBLIC ladder_flags CUDA::cudart_static
    $<TARGET_NAME_IF_EXISTS:CUDA::nvtx3> ${CMAKE_DL_LIBS})
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " architectures)
  target_compile_definitions(ladder_gpu PRIVATE LADDER_ARCHITECTURES="${architectures}")
  # --dram needs only CUPTI's headers, because the library is opened at run time.
  find_path(LADDER_CUPTI_INCLUDE cupti_range_profiler.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
    ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include)
  if(LADDER_CUPTI_INCLUDE)
    target_include_directories(ladder_gpu SYSTEM PRIVATE ${LADDER_CUPTI_INCLUDE})
    target_compile_definitions(ladder_gpu PRIVATE
      LADDER_CUPTI_FOLDER="${CUDAToolkit_LIBRARY_DIR}"
      LADDER_CUPTI_EXTRAS_FOLDER="${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/lib64")
  endif()
else()
  add_library(ladder_gpu STATIC ${PROJECT_SOURCE_DIR}/common/machine/no_gpu.cpp)
  target_compile_definitions(ladder_gpu PRIVATE LADDER_NO_GPU="${no_gpu}")
  target_link_libraries(ladder_gpu PUBLIC ladder_flags)
endif()

file(GLOB harness_sources CONFIGURE_DEPENDS ${here}/common/harness/*.cpp)
list(FILTER harness_sources EXCLUDE REGEX "/main\\.cpp$")
add_library(ladder_harness STATIC ${harness_sources})
target_link_libraries(ladder_harness PUBLIC ladder_sim ladder_gpu)
target_precompile_headers(ladder_harness REUSE_FROM ladder_pch)
if(NOT DEFINED CMAKE_UNITY_BUILD)  # otherwise parsing headers would take most of the time
  set_target_properties(ladder_sim ladder_harness PROPERTIES UNITY_BUILD ON)
endif()
set_source_files_properties(${PROJECT_SOURCE_DIR}/common/harness/reference.cpp PROPERTIES
  COMPILE_OPTIONS "${hot}" SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
add_library(ladder_main OBJECT ${PROJECT_SOURCE_DIR}/common/harness/main.cpp)
target_link_libraries(ladder_main PUBLIC ladder_flags)
target_precompile_headers(ladder_main REUSE_FROM ladder_pch)

# Compile through ptxas.sh, which keeps ptxas's report.
set(reported RULE_LAUNCH_COMPILE "sh \"${PROJECT_SOURCE_DIR}/common/cmake/ptxas.sh\" <OBJECT>")

# ladder_kernels(NAME file.cu …) defines the object libraries NAME_sim and, with CUDA, NAME_gpu. (A
# static library would drop registrations that nothing refers to.) The simulator compiles stubs that
# include the file, because CMake gives a source the same LANGUAGE in all targets.
function(ladder_kernels name)
  set(stubs)
  set(sources)
  foreach(file ${ARGN})
    get_filename_component(path ${file} ABSOLUTE)
    file(RELATIVE_PATH relative ${PROJECT_SOURCE_DIR} ${path})
    set(stub ${PROJECT_BINARY_DIR}/stubs/${relative}.cpp)
    file(CONFIGURE OUTPUT ${stub} CONTENT "#include \"@path@\"\n" @ONLY)
    list(APPEND stubs ${stub})
    list(APPEND sources ${path})
    # In CI without a GPU each rung's default step and the sm90 steps are linked. Only the GPU half
    # of the others is compiled (-cubin): that reports errors of the host half, too, and the
    # simulator's build compiles the same host code.
    set(options)
    if(NOT path MATCHES "/hopper/")
      set(options ${compiles_only})
    endif()
    if(compiles_only AND NOT path MATCHES "/(attention|sm90)[.]cu$")
      list(APPEND options -cubin)
    endif()
    set_source_files_properties(${path} PROPERTIES COMPILE_OPTIONS "${options}")
  endforeach()
  add_library(${name}_sim OBJECT ${stubs})
  target_link_libraries(${name}_sim PUBLIC ladder_flags)
  target_precompile_headers(${name}_sim REUSE_FROM ${precompiled})
  set(objects $<TARGET_OBJECTS:${name}_sim>)
  if(LADDER_GPU)
    add_library(${name}_gpu OBJECT ${sources})
    set_source_files_properties(${sources} PROPERTIES LANGUAGE CUDA)
    target_link_libraries(${name}_gpu PUBLIC ladder_flags)
    target_compile_definitions(${name}_gpu PRIVATE $<$<BOOL:${compiles_only}>:LADDER_ONE_KERNEL>)
    set_target_properties(${name}_gpu PROPERTIES ${reported})
    list(APPEND objects $<TARGET_OBJECTS:${name}_gpu>)
  endif()
  set(${name}_objects ${objects} PARENT_SCOPE)
endfunction()

# add_rung(00_naive [FILES]) defines the program bin/00_naive, compiled from every .cu file in the
# folder and its subfolders, and its tests. FILES are sources of earlier rungs' steps whose forward
# pass a step of this rung uses; their objects are reused. They come last, because the first step
# determines a program's rung.
function(add_rung rung)
  file(GLOB kernels CONFIGURE_DEPENDS ${here}/${rung}/*.cu ${here}/${rung}/*/*.cu)
  if(rung MATCHES "^0[0-3]")
    set(precompiled ladder_pch_warm)
    set(level ${warm})
  endif()
  ladder_kernels(rung_${rung} ${kernels})
  target_compile_options(rung_${rung}_sim PRIVATE ${level})
  foreach(file ${ARGN})
    string(REGEX MATCH "^[^/]+" of ${file})
    foreach(machine sim gpu)
      if(TARGET rung_${of}_${machine})
        list(APPEND rung_${rung}_objects
          "$<FILTER:$<TARGET_OBJECTS:rung_${of}_${machine}>,INCLUDE,/${file}[.]>")
      endif()
    endforeach()
  endforeach()
  add_executable(${rung} $<TARGET_OBJECTS:ladder_main> ${rung_${rung}_objects})
  target_link_libraries(${rung} PRIVATE ladder_harness)
  add_dependencies(programs ${rung})
  if(LADDER_TESTS)
    ladder_rung_tests(${rung} "${rung_${rung}_objects}")
  endif()
endfunction()

add_custom_target(programs)  # scripts/run builds this
if(LADDER_TESTS)
  enable_testing()
  include(common/tests/tests.cmake)
endif()
