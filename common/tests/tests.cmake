# ladder_rung_tests(RUNG OBJECTS): the shared suite over the rung's variants, and its command line.
include(GoogleTest)
# Python's tests run with -v: scripts/test reads the reasons of what was skipped.
set(tests ${CMAKE_SOURCE_DIR}/common/tests)

# A GoogleTest program from one file; its cases are ctest's. Labels: as given. LOCK: what only one
# test may use at a time.
function(ladder_test name)
  cmake_parse_arguments(arg "" "LOCK" "SOURCES;LABELS;LIBRARIES;DEFINITIONS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_compile_definitions(${name} PRIVATE ${arg_DEFINITIONS})
  target_link_libraries(${name} PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  set(properties)
  if(arg_LABELS)
    list(APPEND properties LABELS "${arg_LABELS}")
  endif()
  if(arg_LOCK)
    list(APPEND properties RESOURCE_LOCK ${arg_LOCK})
  endif()
  if(properties)
    list(PREPEND properties PROPERTIES)
  endif()
  gtest_discover_tests(${name} TEST_PREFIX ${name}. ${properties})
endfunction()

foreach(name sim_test races_test hopper_faults_test)
  ladder_test(${name} SOURCES ${tests}/${name}.cpp LABELS asan DEFINITIONS LADDER_SIM)
  target_compile_options(${name} PRIVATE -Wno-unknown-pragmas)
endforeach()
ladder_test(sampling_test SOURCES ${tests}/sampling_test.cpp LABELS asan)
ladder_test(float8_test SOURCES ${tests}/float8_test.cpp LABELS asan)
ladder_test(quantised_test SOURCES ${tests}/quantised_test.cpp LABELS asan)
ladder_test(npy_test SOURCES ${tests}/npy_test.cpp LABELS asan)
ladder_test(reference_test SOURCES ${tests}/reference_test.cpp LABELS asan)
ladder_test(options_test SOURCES ${tests}/options_test.cpp LABELS asan)
add_executable(npy_fuzz ${tests}/npy_fuzz.cpp)
target_link_libraries(npy_fuzz PRIVATE ladder_harness)
add_test(NAME npy_fuzz COMMAND npy_fuzz ${tests}/npy_corpus --iterations 50000)
set_tests_properties(npy_fuzz PROPERTIES LABELS asan)

if(LADDER_GPU)
  ladder_test(float16_test SOURCES ${tests}/float16_test.cu)
  ladder_test(gpu_test SOURCES ${tests}/gpu_test.cu LABELS gpu LOCK gpu)
  add_test(NAME registers COMMAND Python3::Interpreter ${tests}/registers_test.py
    ${CMAKE_CUDA_COMPILER} -v)
endif()

# Files of kernels and tests, compiled for both machines.
foreach(name tile_test over_warps_test hopper_test fp8_test)
  ladder_kernels(${name}_kernels ${tests}/${name}.cu)
  add_executable(${name} ${${name}_kernels_objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${name} TEST_PREFIX ${name}. TEST_FILTER "Sim*" PROPERTIES LABELS asan)
  if(LADDER_GPU)
    gtest_discover_tests(${name} TEST_PREFIX ${name}. TEST_FILTER "Gpu*" TEST_LIST ${name}_gpu
      PROPERTIES LABELS gpu RESOURCE_LOCK gpu)
  endif()
endforeach()

# ladder_broken(COPY SOURCE VARIANT [OLD NEW]): a copy of a source with the text OLD, where it stands
# first, replaced; appended to broken_copies. Its variant, if it has one, is called COPY. A text that
# is not there is an error: the source has moved on, and the copy would be sound.
function(ladder_broken copy source variant)
  file(READ ${CMAKE_SOURCE_DIR}/${source} text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${source})
  if(ARGC GREATER 3)
    string(FIND "${text}" "${ARGV3}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "${copy}: '${ARGV3}' is not in ${source}; adapt common/tests/tests.cmake")
    endif()
    string(LENGTH "${ARGV3}" length)
    math(EXPR after "${at} + ${length}")
    string(SUBSTRING "${text}" 0 ${at} head)
    string(SUBSTRING "${text}" ${after} -1 tail)
    set(text "${head}${ARGV4}${tail}")
  endif()
  string(REPLACE ".name = \"${variant}\"" ".name = \"${copy}\"" text "${text}")
  set(path ${CMAKE_BINARY_DIR}/broken/${copy}.cpp)
  file(CONFIGURE OUTPUT ${path} CONTENT "${text}" @ONLY)
  set(broken_copies ${broken_copies} ${path} PARENT_SCOPE)
endfunction()

set(broken_copies)
set(tile 01_tiled_matmul/tile.cu tile)
ladder_broken(tile_sound ${tile})
ladder_broken(tile_no_first_barrier ${tile} "__syncthreads();  // the tiles are complete" "")
ladder_broken(tile_no_second_barrier ${tile} "__syncthreads();  // everybody is done with them" "")
ladder_broken(tile_loads_past_the_end ${tile} "inside && i < p.N ?" "inside && i <= p.N ?")
ladder_broken(tile_stores_past_the_end ${tile} "if (i < p.N && j < p.N_kv)"
  "if (i < p.N && j <= p.N_kv)")
ladder_broken(tile_makes_rows_of_the_block_before ${tile} "int64_t{blockIdx.x} * kRowThreads"
  "int64_t{blockIdx.x} * (kRowThreads - 1)")
ladder_broken(tile_formula_misses_the_last_tile ${tile} "ceil_div(p.N_kv, kTile)" "(p.N_kv / kTile)")
# And as a program, for the explorer to show where a fault happens.
add_executable(broken_rung ${CMAKE_SOURCE_DIR}/common/harness/main.cpp
  ${CMAKE_BINARY_DIR}/broken/tile_sound.cpp ${CMAKE_BINARY_DIR}/broken/tile_no_first_barrier.cpp)
target_compile_definitions(broken_rung PRIVATE LADDER_SIM LADDER_RUNG="01_tiled_matmul")
target_compile_options(broken_rung PRIVATE -Wno-unknown-pragmas -g1)
target_link_libraries(broken_rung PRIVATE ladder_harness)
set_target_properties(broken_rung PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/broken)
# A link, not its output's name: by that, `--target 01_tiled_matmul` would build this one.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/broken/bin)
file(CREATE_LINK ../broken_rung ${CMAKE_BINARY_DIR}/broken/bin/01_tiled_matmul SYMBOLIC)
set(mma 01_tiled_matmul/attention.cu mma)
ladder_broken(mma_sound ${mma})
ladder_broken(mma_waits_for_a_stage_too_few ${mma} "cp_async_wait<kStages - 2>"
  "cp_async_wait<kStages - 1>")
ladder_broken(mma_no_barrier_in_the_loop ${mma} "__syncthreads();  // this step's tiles" "//")
ladder_broken(mma_no_barrier_after_the_loop ${mma} "cp_async_wait<0>();\n  __syncthreads();"
  "cp_async_wait<0>();")
ladder_broken(mma_loads_past_the_end ${mma} "g.rows - row, g.inner - k" "g.rows - row + 1, g.inner - k")
set(stored 06_backward/stored.cu stored)
ladder_broken(stored_sound ${stored})
ladder_broken(stored_forgets_D ${stored} "(float(ds[e]) - D)" "float(ds[e])")
ladder_broken(stored_forgets_the_group ${stored} "p.H / p.Hk * p.N" "p.N")
ladder_broken(stored_formula_counts_blocks_of_queries ${stored} "{\"Q\", q * key_blocks, 0}"
  "{\"Q\", q * row_blocks, 0}")
# An atomic addition done as a plain one: a read, a sum and a write.
set(backward 06_backward/attention.cu mma)
ladder_broken(backward_sound ${backward})
ladder_broken(backward_adds_to_dQ_plainly ${backward} "atomic_add_pair(dQ_tile"
  "[](Hbm<float> at, float x, float y) { at[0] = at[0] + x, at[1] = at[1] + y; }(dQ_tile")
set(persistent 05_flash_v2/hopper/persistent.cu persistent)
ladder_broken(persistent_sound ${persistent})
ladder_broken(persistent_counts_plainly ${persistent} "atomicAdd(next, 1)"
  "[&] { const int n = next[0]; next[0] = n + 1; return n; }()")
# Of e4m3: an order of keys, scales and layouts.
set(fp8 05_flash_v2/hopper/fp8.cu fp8)
ladder_broken(fp8_sound ${fp8})
ladder_broken(fp8_keys_as_they_come ${fp8} "constexpr int kRows"
  "constexpr int column_at(int i) { return i; }\nconstexpr int kRows")
ladder_broken(fp8_forgets_the_scale_of_V ${fp8} "of_V * inverse_or_zero(l)" "inverse_or_zero(l)")
ladder_broken(fp8_forgets_that_the_scale_of_V_changes ${fp8} "(of_V_before / of_V) * alpha" "alpha")
ladder_broken(fp8_takes_another_tiles_scale ${fp8} "of_K = scales[first + step]" "of_K = scales[first]")
ladder_broken(fp8_takes_another_heads_scale ${fp8} "scales[w.head * scaled.q + row / kRows]"
  "scales[row / kRows]")
ladder_broken(fp8_transforms_Q_alone ${fp8} "if (how.hadamard)" "if (how.hadamard && is_Q)")
ladder_broken(fp8_exchanges_neighbours_of_V ${fp8} "x[e][c]" "x[e ^ 1][c]")
ladder_broken(fp8_transposes_without_a_barrier ${fp8} "__syncthreads();  // the tile is transposed" "")
ladder_broken(fp8_forgets_the_scale_of_P ${fp8} "shift - fill_rows<16>(p_exponent)" "shift")
ladder_broken(fp8_swizzles_Q_and_K_by_128 ${fp8} "SwizzledTile<e4m3, kRows, D>::kPanelBytes)" "128)")
ladder_broken(fp8_frees_K_too_early ${fp8} "    wgmma_wait<0>(S);\n    K.release();"
  "    K.release();\n    wgmma_wait<0>(S);")

ladder_test(broken_test SOURCES ${tests}/broken_test.cpp ${broken_copies} LABELS sim)
target_compile_definitions(broken_test PRIVATE LADDER_SIM)
target_compile_options(broken_test PRIVATE -Wno-unknown-pragmas -O1)  # compiles sooner

# The same tests' sound kernel against a reference that leaves out the last key. It stands before the
# library's at link time.
set(tile_sound ${CMAKE_BINARY_DIR}/broken/tile_sound.cpp)
set(broken_copies)
ladder_broken(reference common/harness/reference.cpp "" "static_cast<size_t>(p.keys(i))"
  "static_cast<size_t>(std::max(1, p.keys(i) - 1))")
ladder_test(broken_reference_test SOURCES ${tests}/broken_test.cpp ${tile_sound} ${broken_copies}
  LABELS sim DEFINITIONS BROKEN_REFERENCE LADDER_SIM)
target_compile_options(broken_reference_test PRIVATE -Wno-unknown-pragmas)

# And the gradients' test against a reference whose softmax forgets D.
set(broken_copies)
ladder_broken(gradients common/harness/reference.cpp "" "(dP[j] - D)" "(dP[j] - 0 * D)")
ladder_test(broken_gradients_test SOURCES ${tests}/reference_test.cpp ${broken_copies}
  DEFINITIONS BROKEN_REFERENCE)

function(ladder_rung_tests rung objects)
  add_executable(${rung}_test ${tests}/suite_test.cpp ${objects})
  target_link_libraries(${rung}_test PRIVATE ladder_harness GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${rung}_test TEST_PREFIX ${rung}. TEST_FILTER "Sim.*:Verification.*:SmallerSharedMemory.*:EachSetting.*"
    PROPERTIES LABELS sim)
  gtest_discover_tests(${rung}_test TEST_PREFIX ${rung}. TEST_FILTER "Schedules.*"
    TEST_LIST ${rung}_schedules PROPERTIES LABELS asan)
  add_test(NAME ${rung}.cli COMMAND Python3::Interpreter ${tests}/cli_test.py
    ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${rung} -v)
  if(LADDER_GPU)
    # One process for all cases: there are hundreds, and each process would open the GPU anew.
    add_test(NAME ${rung}.Gpu COMMAND ${rung}_test --gtest_filter=Gpu*-GpuLarge.*)
    add_test(NAME ${rung}.GpuLarge COMMAND ${rung}_test --gtest_filter=GpuLarge.*)
    set_tests_properties(${rung}.Gpu ${rung}.GpuLarge PROPERTIES LABELS gpu RESOURCE_LOCK gpu
      SKIP_REGULAR_EXPRESSION "not run here: ")
  endif()
endfunction()

add_test(NAME scripts COMMAND Python3::Interpreter ${tests}/scripts_test.py -v)
add_test(NAME lessons COMMAND Python3::Interpreter ${tests}/lessons_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -v)
add_test(NAME diff COMMAND Python3::Interpreter ${tests}/diff_test.py -v)
add_test(NAME peers COMMAND Python3::Interpreter ${tests}/peers_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -v)
add_test(NAME bench COMMAND Python3::Interpreter ${tests}/bench_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -v)
add_test(NAME toy COMMAND Python3::Interpreter ${tests}/toy_test.py ${CMAKE_CXX_COMPILER} -v)
set_tests_properties(toy PROPERTIES PROCESSORS 2)  # it builds
add_test(NAME exercises COMMAND Python3::Interpreter ${tests}/exercises_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -v)
set_tests_properties(exercises PROPERTIES PROCESSORS 2)  # it builds
add_test(NAME mutate COMMAND Python3::Interpreter ${tests}/mutate_test.py -v)
add_test(NAME clock COMMAND Python3::Interpreter ${tests}/clock_test.py ${CMAKE_CXX_COMPILER} -v)
add_test(NAME claims COMMAND Python3::Interpreter ${tests}/claims_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -v)
add_test(NAME explore COMMAND Python3::Interpreter ${tests}/explore_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} TraceTest CommandTest PerfettoTest -v)
add_test(NAME explore_page COMMAND Python3::Interpreter ${tests}/explore_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} PageTest -v)
set_tests_properties(explore_page PROPERTIES SKIP_REGULAR_EXPRESSION "not run here: ")
add_test(NAME plots COMMAND Python3::Interpreter ${tests}/plots_test.py
  ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -v)

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
ladder_part(sim sim_test races_test hopper_faults_test gpu_test broken_test broken_reference_test
  broken_gradients_test)
ladder_part(tile tile_test over_warps_test hopper_test fp8_test float8_test float16_test registers)
ladder_part(harness options_test npy_test npy_fuzz reference_test quantised_test sampling_test)
ladder_part(scripts scripts lessons diff peers bench toy exercises mutate clock claims explore
  explore_page plots)
add_dependencies(tests_scripts programs broken_rung)
# A test that no part has would run only with all others.
get_property(all DIRECTORY PROPERTY TESTS)
get_property(programs_of_tests DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
list(FILTER programs_of_tests INCLUDE REGEX "_test$")
foreach(test ${all} ${programs_of_tests})
  if(NOT test IN_LIST parts AND NOT test MATCHES "^[0-9][0-9]_")
    message(SEND_ERROR "${test} is in no part of scripts/test: name it in common/tests/tests.cmake")
  endif()
endforeach()
