# The tests of the scripts and of the lessons. -v: scripts/test reads why something was skipped.
function(ladder_script_test name file)
  add_test(NAME ${name} COMMAND Python3::Interpreter
    ${CMAKE_SOURCE_DIR}/scripts/tests/${file}_test.py ${ARGN} -v)
endfunction()
foreach(name run ready style diff mutate)
  ladder_script_test(${name} ${name})
endforeach()
foreach(name lessons peers bench exercises claims plots)
  ladder_script_test(${name} ${name} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endforeach()
foreach(name toy clock)
  ladder_script_test(${name} ${name} ${CMAKE_CXX_COMPILER})
endforeach()
ladder_script_test(explore explore ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
  TraceTest CommandTest PerfettoTest)
ladder_script_test(explore_page explore ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} PageTest)
set_tests_properties(explore_page PROPERTIES SKIP_REGULAR_EXPRESSION "not run here: ")
set_tests_properties(exercises PROPERTIES PROCESSORS 2)  # it builds
# The longest first, or they would run alone at the end.
set_tests_properties(plots lessons explore explore_page bench run PROPERTIES COST 50)
set_tests_properties(exercises PROPERTIES COST 100)
set_tests_properties(mutate peers ready diff PROPERTIES COST 20)
