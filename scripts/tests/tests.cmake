# The tests of the scripts and of the lessons. -v: scripts/test reads why something was skipped.
foreach(name run ready style diff bench figures)
  ladder_test(scripts ${name} Python3::Interpreter ${scripts}/${name}_test.py -v)
endforeach()
foreach(name lessons exercises results explore)
  ladder_test(scripts ${name} Python3::Interpreter ${scripts}/${name}_test.py
    ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -v)
endforeach()
set_tests_properties(exercises PROPERTIES PROCESSORS 2)  # it builds
# The longest first, or they would run alone at the end.
set_tests_properties(figures results lessons explore bench run PROPERTIES COST 50)
set_tests_properties(exercises PROPERTIES COST 100)
set_tests_properties(ready diff PROPERTIES COST 20)
