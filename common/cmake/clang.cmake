# For the preset clang: the newest clang there is, with its own C++ library.
find_program(LADDER_CLANG NAMES clang++-20 clang++-19 clang++-18 clang++-17 clang++-16 clang++)
if(NOT LADDER_CLANG)
  message(FATAL_ERROR "clang is missing: install version 16 or newer, and its libc++ (Debian, Ubuntu: "
    "clang libc++-dev libc++abi-dev; Debian 12: clang-16 libc++-16-dev libc++abi-16-dev)")
endif()
set(CMAKE_CXX_COMPILER ${LADDER_CLANG})
set(CMAKE_CXX_FLAGS_INIT -stdlib=libc++)
