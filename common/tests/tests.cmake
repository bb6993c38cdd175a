# ladder_rung_tests(RUNG OBJECTS): the shared suite over the rung's variants, and its command line.
include(GoogleTest)
set(tests ${CMAKE_SOURCE_DIR}/common/tests)

# A GoogleTest program from one file; its cases are ctest's. Labels: as given.
function(ladder_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LABELS;LIBRARIES;DEFINITIONS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_compile_definitions(${name} PRIVATE ${arg_DEFINITIONS})
  target_link_libraries(${name} PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${name} TEST_PREFIX ${name}. PROPERTIES LABELS "${arg_LABELS}")
endfunction()

ladder_test(sim_test SOURCES ${tests}/sim_test.cpp LABELS asan DEFINITIONS LADDER_SIM)
target_compile_options(sim_test PRIVATE -Wno-unknown-pragmas)
ladder_test(npy_test SOURCES ${tests}/npy_test.cpp LABELS asan)
ladder_test(options_test SOURCES ${tests}/options_test.cpp LABELS asan)
add_executable(npy_fuzz ${tests}/npy_fuzz.cpp)
target_link_libraries(npy_fuzz PRIVATE ladder_harness)
add_test(NAME npy_fuzz COMMAND npy_fuzz ${tests}/npy_corpus --iterations 50000)
set_tests_properties(npy_fuzz PROPERTIES LABELS asan)

if(LADDER_GPU)
  ladder_test(float16_test SOURCES ${tests}/float16_test.cu)
  ladder_test(gpu_test SOURCES ${tests}/gpu_test.cu LABELS gpu)
endif()

function(ladder_rung_tests rung objects)
  add_executable(${rung}_test ${tests}/suite_test.cpp ${objects})
  target_link_libraries(${rung}_test PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${rung}_test TEST_PREFIX ${rung}. TEST_FILTER "Sim.*:Schedules.*"
    PROPERTIES LABELS sim)
  add_test(NAME ${rung}.cli COMMAND Python3::Interpreter ${tests}/cli_test.py
    ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${rung})
  if(LADDER_GPU)
    gtest_discover_tests(${rung}_test TEST_PREFIX ${rung}. TEST_FILTER "Gpu*" TEST_LIST ${rung}_gpu
      PROPERTIES LABELS gpu RESOURCE_LOCK gpu)
  endif()
endfunction()

add_test(NAME scripts COMMAND Python3::Interpreter ${tests}/scripts_test.py)
add_test(NAME lessons COMMAND Python3::Interpreter ${tests}/lessons_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
