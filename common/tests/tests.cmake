# ladder_rung_tests(RUNG OBJECTS): the shared suite over the rung's variants, and its command line.
include(GoogleTest)
set(tests ${CMAKE_SOURCE_DIR}/common/tests)

function(ladder_rung_tests rung objects)
endfunction()
