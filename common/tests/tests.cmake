# GoogleTest's cases run in one process a program: there are thousands, and each process would start
# the sim or open the GPU anew. scripts/test counts them by what the programs print, and has from
# Python's tests, by -v, the reasons of what was skipped.
set(tests ${CMAKE_SOURCE_DIR}/common/tests)

# A GoogleTest program and its test. PROPERTIES: what ctest knows of it.
function(ladder_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;PROPERTIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  if(arg_PROPERTIES)
    set_tests_properties(${name} PROPERTIES ${arg_PROPERTIES})
  endif()
endfunction()

# ladder_cases(NAME PROGRAM FILTER [PROPERTY VALUE]...): some of a program's cases as a test.
function(ladder_cases name program filter)
  add_test(NAME ${name} COMMAND ${program} --gtest_brief=1 --gtest_filter=${filter})
  set_tests_properties(${name} PROPERTIES ${ARGN})
endfunction()
set(on_gpu LABELS gpu RESOURCE_LOCK gpu)

foreach(name sim/sim_test sim/races_test sim/hopper_faults_test sim/hopper_copies_test
    gpu/sampling_test tile/narrow_float_test harness/quantised_test harness/npy_test harness/options_test
    harness/reference_test harness/report_test harness/steps_test)
  get_filename_component(program ${name} NAME)
  ladder_test(${program} SOURCES ${tests}/${name}.cpp PROPERTIES LABELS asan)
endforeach()
foreach(name sim_test races_test hopper_faults_test hopper_copies_test)
  target_precompile_headers(${name} REUSE_FROM headers)
endforeach()

if(LADDER_GPU AND NOT compiles_only)
  ladder_test(gpu_test SOURCES ${tests}/gpu/gpu_test.cu PROPERTIES ${on_gpu})
endif()
if(LADDER_GPU)
  add_test(NAME machine_code COMMAND Python3::Interpreter ${tests}/tile/machine_code_test.py
    ${CMAKE_BINARY_DIR} ${CMAKE_CUDA_COMPILER_VERSION} ${CMAKE_CUDA_COMPILER} -v)
endif()

# Files of kernels and tests, compiled for both machines, but for a GPU only where one may run them.
function(ladder_kernel_test name)
  if(compiles_only)
    set(LADDER_GPU OFF)
  endif()
  ladder_kernels(${name}_kernels ${tests}/tile/${name}.cu)
  add_executable(${name} ${${name}_kernels_objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  ladder_cases(${name}.Sim ${name} Sim* LABELS asan)
  if(LADDER_GPU)
    ladder_cases(${name}.Gpu ${name} Gpu* ${on_gpu})
  endif()
endfunction()
foreach(name tile_test hopper_test fp8_test)
  ladder_kernel_test(${name})
endforeach()

# The suite of every rung; and some rungs' with mistakes that it must find, which it compiles.
add_library(suite OBJECT ${tests}/suite/suite_test.cpp)
target_link_libraries(suite PUBLIC ladder_flags GTest::gtest)
add_test(NAME mistakes COMMAND Python3::Interpreter -B ${tests}/suite/mistakes.py ${CMAKE_BINARY_DIR} -v)
set_tests_properties(mistakes PROPERTIES COST 100 PROCESSORS 2)

function(ladder_rung_tests rung objects)
  add_executable(${rung}_test $<TARGET_OBJECTS:suite> ${objects})
  target_link_libraries(${rung}_test PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  ladder_cases(${rung}.Sim ${rung}_test
    Sim.*:Verification.*:SmallerSharedMemory.*:EachSetting.*:Sizes.* LABELS sim COST 50)
  ladder_cases(${rung}.Schedules ${rung}_test Schedules.* LABELS asan)
  add_test(NAME ${rung}.cli COMMAND Python3::Interpreter ${tests}/harness/cli_test.py
    ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${rung} Rung -v)
  if(LADDER_GPU)
    ladder_cases(${rung}.Gpu ${rung}_test Gpu*-GpuLarge* ${on_gpu})
    ladder_cases(${rung}.GpuLarge ${rung}_test GpuLarge* ${on_gpu})
  endif()
endfunction()

# What is the same for every rung.
add_test(NAME cli COMMAND Python3::Interpreter ${tests}/harness/cli_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} 06_backward Options -v)
set_tests_properties(cli PROPERTIES RESOURCE_LOCK gpu)  # its counters are one program's at a time
add_test(NAME cli_files COMMAND Python3::Interpreter ${tests}/harness/cli_files_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} 06_backward -v)
include(${CMAKE_SOURCE_DIR}/scripts/tests/tests.cmake)

# ladder_part(NAME TEST...): a part of scripts/test besides rungs and steps. Target tests_NAME builds
# its programs; tests_NAME.txt is the regular expression of ctest that runs them.
set(parts)
function(ladder_part name)
  add_custom_target(tests_${name})
  foreach(test ${ARGN})
    if(TARGET ${test})
      add_dependencies(tests_${name} ${test})
    endif()
  endforeach()
  list(JOIN ARGN "|" regex)
  file(WRITE ${CMAKE_BINARY_DIR}/tests_${name}.txt "^(${regex})(\\.|$)\n")
  set(parts ${parts} ${ARGN} PARENT_SCOPE)
endfunction()
ladder_part(sim sim_test races_test hopper_faults_test hopper_copies_test gpu_test)
ladder_part(mistakes mistakes)
ladder_part(tile tile_test hopper_test fp8_test narrow_float_test machine_code)
ladder_part(harness cli cli_files options_test report_test steps_test npy_test reference_test
  quantised_test sampling_test)
ladder_part(scripts ${script_tests})
add_dependencies(tests_harness 06_backward)
add_dependencies(tests_mistakes 01_tiled_matmul_test 05_flash_v2_test 06_backward_test)
add_dependencies(tests_scripts programs)
# A test that no part has would run only with all others.
get_property(all DIRECTORY PROPERTY TESTS)
get_property(programs_of_tests DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
list(FILTER programs_of_tests INCLUDE REGEX "_test$")
foreach(test ${all} ${programs_of_tests})
  string(REGEX REPLACE "[.](Sim|Gpu)$" "" program ${test})
  if(NOT program IN_LIST parts AND NOT test MATCHES "^[0-9][0-9]_")
    message(SEND_ERROR "${test} is in no part of scripts/test: name it in common/tests/tests.cmake")
  endif()
endforeach()
