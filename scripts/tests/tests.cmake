# The tests of the scripts and of the lessons. -v: scripts/test reads why something was skipped.
set(script_tests)
function(ladder_script_test name)
  add_test(NAME ${name} COMMAND Python3::Interpreter
    ${CMAKE_SOURCE_DIR}/scripts/tests/${name}_test.py ${ARGN} -v)
  set(script_tests ${script_tests} ${name} PARENT_SCOPE)
endfunction()
foreach(name run ready style diff bench figures)
  ladder_script_test(${name})
endforeach()
foreach(name lessons exercises results explore)
  ladder_script_test(${name} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endforeach()
set_tests_properties(exercises PROPERTIES PROCESSORS 2)  # it builds
# The longest first, or they would run alone at the end.
set_tests_properties(figures results lessons explore bench run PROPERTIES COST 50)
set_tests_properties(exercises PROPERTIES COST 100)
set_tests_properties(ready diff PROPERTIES COST 20)
