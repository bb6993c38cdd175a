# Defines the tests that ctest and scripts/test run. A GoogleTest program runs its cases in one
# process, because thousands of processes would each start the simulator or open the GPU.
# scripts/test finds the number of cases and the reasons for skipped tests in the output (hence -v).
set(tests ${PROJECT_SOURCE_DIR}/common/tests)
set(scripts ${PROJECT_SOURCE_DIR}/scripts/tests)

# PART is the part of scripts/test that a test belongs to, and one of its labels: a folder here,
# `build_tasks`, `scripts`, or a rung, NN_name. The target tests_PART builds a part's programs.
foreach(part sim tile harness build_tasks scripts gpu)
  add_custom_target(tests_${part})
endforeach()

# Precompiled headers for all tests: those of ladder_pch (ladder.cmake) and GoogleTest's.
add_library(ladder_pch_tests OBJECT ${PROJECT_BINARY_DIR}/stubs/none.cpp)
target_link_libraries(ladder_pch_tests PRIVATE ladder_flags GTest::gtest)
target_precompile_headers(ladder_pch_tests PRIVATE <machine/machine.h> <fmt/format.h> <gtest/gtest.h>)

# ladder_program(PART NAME SOURCES...) defines a GoogleTest program, but no test that runs it.
function(ladder_program part name)
  add_executable(${name} ${ARGN})
  target_precompile_headers(${name} REUSE_FROM ladder_pch_tests)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  add_dependencies(tests_${part} ${name})
endfunction()

# ladder_test(PART NAME COMMAND...) defines a test that runs a command.
function(ladder_test part name)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_property(TEST ${name} APPEND PROPERTY LABELS ${part})
  set_property(TEST ${name} PROPERTY ENVIRONMENT PYTHONSAFEPATH=)  # a test imports its neighbours
endfunction()

# ladder_cases(PART NAME PROGRAM FILTER LABEL) defines a test from those cases of a program that
# GoogleTest's FILTER selects. Some presets run only the tests labelled `suite` or `asan`; tests
# labelled `gpu` run one at a time. (ctest starts tests with a high COST first.)
function(ladder_cases part name program filter label)
  ladder_test(${part} ${name} ${program} --gtest_brief=1 --gtest_filter=${filter})
  set_property(TEST ${name} APPEND PROPERTY LABELS ${label})
  if("${label}" STREQUAL "gpu")
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK gpu)
    add_dependencies(tests_gpu ${program})
  elseif("${label}" STREQUAL "suite")
    set_tests_properties(${name} PROPERTIES COST 50)
  endif()
endfunction()

foreach(name sim/sim_test sim/races_test sim/hopper_faults_test sim/hopper_copies_test
    tile/tile_test tile/narrow_float_test harness/options_test harness/reference_test harness/report_test)
  get_filename_component(part ${name} DIRECTORY)
  get_filename_component(program ${name} NAME)
  ladder_program(${part} ${program} ${tests}/${name}.cpp)
  ladder_cases(${part} ${program} ${program} * asan)
endforeach()

# Build this test as if the user's CXXFLAGS contained -ffast-math, which our own flags must undo.
set(fast $<$<CXX_COMPILER_ID:GNU>:-ffast-math>)
target_compile_options(narrow_float_test PRIVATE ${fast})
target_link_options(narrow_float_test PRIVATE ${fast})

if(LADDER_GPU AND NOT compiles_only)
  ladder_program(sim gpu_test ${tests}/gpu/gpu_test.cu)
  ladder_cases(sim gpu_test gpu_test * gpu)
endif()
if(LADDER_GPU)
  ladder_test(tile machine_code Python3::Interpreter ${scripts} machine_code
    ${PROJECT_BINARY_DIR} ${CMAKE_CUDA_COMPILER_VERSION} ${CMAKE_CUDA_COMPILER} -v)
endif()

# fp8_test is compiled for both machines. Its cases for the GPU become a test only if they can run.
ladder_kernels(fp8_test_kernels ${PROJECT_SOURCE_DIR}/05_flash_v2/hopper/tests/fp8_test.cu)
target_link_libraries(fp8_test_kernels_sim PRIVATE GTest::gtest)
ladder_program(tile fp8_test ${fp8_test_kernels_objects})
ladder_cases(tile fp8_test.Sim fp8_test Sim* asan)
if(LADDER_GPU AND NOT compiles_only)
  ladder_cases(tile fp8_test.Gpu fp8_test Gpu* gpu)
endif()

# The suite, which each rung links with its steps, and the test that compiles steps with mistakes,
# which the suite must find.
add_library(suite OBJECT ${tests}/suite/suite_test.cpp)
target_link_libraries(suite PUBLIC ladder_flags GTest::gtest)
target_precompile_headers(suite REUSE_FROM ladder_pch_tests)
ladder_test(build_tasks build_tasks Python3::Interpreter -B ${scripts} build_tasks
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -v)
set_tests_properties(build_tasks PROPERTIES COST 100 PROCESSORS 2)

# ladder_rung_tests(RUNG OBJECTS) defines the tests of a rung, whose steps are compiled to OBJECTS.
function(ladder_rung_tests rung objects)
  add_custom_target(tests_${rung})  # its DEPENDS would not accept a # in the path
  add_dependencies(tests_${rung} ${rung})
  ladder_program(${rung} ${rung}_test $<TARGET_OBJECTS:suite> ${objects})
  ladder_cases(${rung} ${rung}.Sim ${rung}_test
    Sim.*:Verification.*:SmallerSharedMemory.*:EachSetting.*:Sizes.* suite)
  ladder_cases(${rung} ${rung}.Schedules ${rung}_test Schedules.* asan)
  ladder_test(${rung} ${rung}.cli Python3::Interpreter ${scripts} cli
    ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${rung} Rung -v)
  if(LADDER_GPU AND NOT compiles_only)
    ladder_cases(${rung} ${rung}.Gpu ${rung}_test Gpu*-GpuLarge* gpu)
    ladder_cases(${rung} ${rung}.GpuLarge ${rung}_test GpuLarge* gpu)
  endif()
endfunction()

# Tests of the command line, which is the same for every rung.
ladder_test(harness cli Python3::Interpreter ${scripts} cli
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} 06_backward Options -v)
ladder_test(harness cli_files Python3::Interpreter ${scripts} cli
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} 06_backward FilesTest PlacesTest -v)

foreach(name run ready style diff bench figures)
  ladder_test(scripts ${name} Python3::Interpreter ${scripts} ${name} -v)
endforeach()
foreach(name lessons exercises results explore)
  ladder_test(scripts ${name} Python3::Interpreter ${scripts} ${name}
    ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -v)
endforeach()
set_tests_properties(exercises PROPERTIES PROCESSORS 2)  # it builds
# The longest tests start first, because they would otherwise run alone at the end.
set_tests_properties(figures results lessons explore bench run PROPERTIES COST 50)
set_tests_properties(exercises PROPERTIES COST 100)
set_tests_properties(ready diff PROPERTIES COST 20)

add_dependencies(tests_harness 06_backward)
add_dependencies(tests_build_tasks suite programs)
add_dependencies(tests_scripts programs)
