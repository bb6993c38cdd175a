# GoogleTest's cases run in one process a program: there are thousands, and each process would start
# the sim or open the GPU anew. scripts/test counts them by what the programs print, and has from
# Python's tests, by -v, the reasons of what was skipped.
set(tests ${CMAKE_SOURCE_DIR}/common/tests)
set(scripts ${CMAKE_SOURCE_DIR}/scripts/tests)

# Every test says to which part of scripts/test it belongs: a folder here, `mistakes`, `climb`,
# `scripts`, or its rung, NN_name. Target tests_PART builds a part's programs; tests_PART.txt, which
# is written at the end, is the regular expression of ctest that runs its tests.
foreach(part sim tile harness mistakes climb scripts)
  add_custom_target(tests_${part})
endforeach()

# As `headers` are, with GoogleTest's.
add_library(test_headers OBJECT ${CMAKE_BINARY_DIR}/stubs/none.cpp)
target_link_libraries(test_headers PRIVATE ladder_flags GTest::gtest)
target_precompile_headers(test_headers PRIVATE <machine/machine.h> <fmt/format.h> <gtest/gtest.h>)

# A GoogleTest program of a part.
function(ladder_program part name)
  add_executable(${name} ${ARGN})
  target_precompile_headers(${name} REUSE_FROM test_headers)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  if(TARGET tests_${part})
    add_dependencies(tests_${part} ${name})
  endif()
endfunction()

# ladder_test(PART NAME COMMAND...)
function(ladder_test part name)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_property(GLOBAL APPEND PROPERTY tests_${part} ${name})
endfunction()

# ladder_cases(PART NAME PROGRAM FILTER [PROPERTY VALUE]...): some of a program's cases as a test.
function(ladder_cases part name program filter)
  ladder_test(${part} ${name} ${program} --gtest_brief=1 --gtest_filter=${filter})
  set_tests_properties(${name} PROPERTIES ${ARGN})
endfunction()
set(on_gpu LABELS gpu RESOURCE_LOCK gpu)

foreach(name sim/sim_test sim/races_test sim/hopper_faults_test sim/hopper_copies_test
    tile/tile_test tile/narrow_float_test harness/options_test harness/reference_test harness/report_test)
  get_filename_component(part ${name} DIRECTORY)
  get_filename_component(program ${name} NAME)
  ladder_program(${part} ${program} ${tests}/${name}.cpp)
  ladder_cases(${part} ${program} ${program} * LABELS asan)
endforeach()

if(LADDER_GPU AND NOT compiles_only)
  ladder_program(sim gpu_test ${tests}/gpu/gpu_test.cu)
  ladder_cases(sim gpu_test gpu_test * ${on_gpu})
endif()
if(LADDER_GPU)
  ladder_test(tile machine_code Python3::Interpreter ${scripts}/machine_code_test.py
    ${CMAKE_BINARY_DIR} ${CMAKE_CUDA_COMPILER_VERSION} ${CMAKE_CUDA_COMPILER} -v)
endif()

# Files of kernels and tests, compiled for both machines, but for a GPU only where one may run them.
function(ladder_kernel_test name)
  set(precompiled test_headers)
  ladder_kernels(${name}_kernels ${tests}/tile/${name}.cu)
  target_link_libraries(${name}_kernels_sim PRIVATE GTest::gtest)
  ladder_program(tile ${name} ${${name}_kernels_objects})
  ladder_cases(tile ${name}.Sim ${name} Sim* LABELS asan)
  if(LADDER_GPU AND NOT compiles_only)
    ladder_cases(tile ${name}.Gpu ${name} Gpu* ${on_gpu})
  endif()
endfunction()
foreach(name hopper_test fp8_test)
  ladder_kernel_test(${name})
endforeach()

# The suite of every rung; and some rungs' with mistakes that it must find, which it compiles.
add_library(suite OBJECT ${tests}/suite/suite_test.cpp)
target_link_libraries(suite PUBLIC ladder_flags GTest::gtest)
target_precompile_headers(suite REUSE_FROM test_headers)
ladder_test(mistakes mistakes Python3::Interpreter -B ${scripts}/mistakes.py ${CMAKE_BINARY_DIR} -v)
ladder_test(climb climb Python3::Interpreter -B ${scripts}/climb_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -v)
set_tests_properties(mistakes climb PROPERTIES COST 100 PROCESSORS 2)

function(ladder_rung_tests rung objects)
  ladder_program(${rung} ${rung}_test $<TARGET_OBJECTS:suite> ${objects})
  ladder_cases(${rung} ${rung}.Sim ${rung}_test
    Sim.*:Verification.*:SmallerSharedMemory.*:EachSetting.*:Sizes.* LABELS sim COST 50)
  ladder_cases(${rung} ${rung}.Schedules ${rung}_test Schedules.* LABELS asan)
  ladder_test(${rung} ${rung}.cli Python3::Interpreter ${scripts}/cli_test.py
    ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${rung} Rung -v)
  if(LADDER_GPU)
    ladder_cases(${rung} ${rung}.Gpu ${rung}_test Gpu*-GpuLarge* ${on_gpu})
    ladder_cases(${rung} ${rung}.GpuLarge ${rung}_test GpuLarge* ${on_gpu})
  endif()
endfunction()

# What is the same for every rung.
ladder_test(harness cli Python3::Interpreter ${scripts}/cli_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} 06_backward Options -v)
set_tests_properties(cli PROPERTIES RESOURCE_LOCK gpu)  # its counters are one program's at a time
ladder_test(harness cli_files Python3::Interpreter ${scripts}/cli_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} 06_backward Files Places -v)
include(${CMAKE_SOURCE_DIR}/scripts/tests/tests.cmake)
set_property(GLOBAL PROPERTY tests_scripts ${script_tests})

add_dependencies(tests_harness 06_backward)
add_dependencies(tests_climb suite programs)
add_dependencies(tests_mistakes 01_tiled_matmul_test 05_flash_v2_test 06_backward_test)
add_dependencies(tests_scripts programs)
foreach(part sim tile harness mistakes climb scripts)
  get_property(names GLOBAL PROPERTY tests_${part})
  list(JOIN names "|" regex)
  file(WRITE ${CMAKE_BINARY_DIR}/tests_${part}.txt "^(${regex})$\n")
endforeach()
