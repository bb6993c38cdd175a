# For the preset arm64: cross-compiled, and its tests run by qemu, on one core because threads hang in
# the qemu of Debian 12. Debian, Ubuntu: g++-aarch64-linux-gnu qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR taskset -c 0 qemu-aarch64 -L /usr/aarch64-linux-gnu)
file(GLOB CMAKE_PREFIX_PATH /usr/lib/*/cmake)  # fmt's headers are any processor's
