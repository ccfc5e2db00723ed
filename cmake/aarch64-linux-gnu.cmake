# Builds for 64-bit ARM Linux with Debian's g++-aarch64-linux-gnu; ctest runs the result with Debian's qemu-user.
# EXECUTORCH_PREFIX must be the executorch package of that architecture, which `make test-aarch64` fetches.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# Without SME: qemu 7.2 computes its integer outer products wrongly (SMOPA alone shows it).
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu max,sme=off -L /usr/aarch64-linux-gnu)
