# ladder_rung_tests(RUNG OBJECTS): the shared suite over the rung's variants, and its command line.
include(GoogleTest)
set(tests ${CMAKE_SOURCE_DIR}/common/tests)

# A GoogleTest program from one file; its cases are ctest's. Labels: as given.
function(ladder_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LABELS;LIBRARIES;DEFINITIONS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_compile_definitions(${name} PRIVATE ${arg_DEFINITIONS})
  target_link_libraries(${name} PRIVATE ladder_harness GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} TEST_PREFIX ${name}. PROPERTIES LABELS "${arg_LABELS}")
endfunction()

ladder_test(sim_test SOURCES ${tests}/sim_test.cpp LABELS asan DEFINITIONS LADDER_SIM)
target_compile_options(sim_test PRIVATE -Wno-unknown-pragmas)

if(LADDER_GPU)
  ladder_test(float16_test SOURCES ${tests}/float16_test.cu)
  ladder_test(gpu_test SOURCES ${tests}/gpu_test.cu LABELS gpu)
endif()

function(ladder_rung_tests rung objects)
  add_executable(${rung}_test ${tests}/suite_test.cpp ${objects})
  target_link_libraries(${rung}_test PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${rung}_test TEST_PREFIX ${rung}. TEST_FILTER "Sim.*:Schedules.*"
    PROPERTIES LABELS sim)
  if(LADDER_GPU)
    gtest_discover_tests(${rung}_test TEST_PREFIX ${rung}. TEST_FILTER "Gpu*" TEST_LIST ${rung}_gpu
      PROPERTIES LABELS gpu RESOURCE_LOCK gpu)
  endif()
endfunction()
