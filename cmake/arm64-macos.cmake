# Builds for Apple silicon on Linux, with Zig's Clang and its copy of macOS's headers (the package ziglang in .venv).
# EXECUTORCH_PREFIX must be the executorch package for macOS, which `make wheel-macos` fetches.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(zig "${CMAKE_CURRENT_LIST_DIR}/../.venv/bin/python" -m ziglang)
set(languages C CXX)
set(compilers cc c++)
foreach(language compiler IN ZIP_LISTS languages compilers)
  set(CMAKE_${language}_COMPILER ${zig} ${compiler} -target aarch64-macos.14.0)
  # The system's ar does not write archives as Mach-O's linker reads them.
  list(JOIN zig " " archiver)
  set(CMAKE_${language}_ARCHIVE_CREATE "${archiver} ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_FINISH "${archiver} ranlib <TARGET>")
endforeach()
