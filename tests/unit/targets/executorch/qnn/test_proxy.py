"""The proxy before libQnnHtp.so: it rewrites the configuration of a device and passes everything else on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from zoexport.core.qnn import QnnLibrary

REAL = """
#include <cstdint>
#include <cstdio>
struct Config { uint32_t option; const uint32_t* custom; };
// Reads a configuration as newer headers lay it out: the value begins 8 bytes after the option.
static uint64_t device_create(void* log, const Config** configs, void** device) {
  std::printf("log %d ", static_cast<int>(reinterpret_cast<intptr_t>(log)));
  for (; *configs != nullptr; ++configs) {
    const uint32_t* words = (*configs)->custom;
    std::printf("%u:%u,%u,%u ", (*configs)->option, words[0], words[2], words[3]);
  }
  std::printf("end\\n");
  std::fflush(stdout);
  *device = reinterpret_cast<void*>(0x51);
  return 7;
}
static uint64_t other() { return 42; }
extern "C" uint64_t QnnInterface_getProviders(const void*** providers, uint32_t* count) {
  struct Interface { uint32_t id; const char* name; uint32_t version[6]; void* functions[80]; };
  static Interface interface{6, "real", {2, 40, 0, 5, 51, 0}, {}};
  for (auto& function : interface.functions) function = reinterpret_cast<void*>(&other);
  interface.functions[40] = reinterpret_cast<void*>(&device_create);
  static const void* provider = &interface;
  *providers = &provider;
  *count = 1;
  return 0;
}
"""

CALLER = """
import ctypes, json, sys
u32, pointer = ctypes.c_uint32, ctypes.c_void_p
class Config(ctypes.Structure):
    _fields_ = [("option", u32), ("custom", pointer)]
proxy = ctypes.CDLL(sys.argv[1])
providers, count = ctypes.POINTER(pointer)(), u32()
rc = proxy.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count))
slots = ctypes.cast(providers[0] + 40, ctypes.POINTER(pointer))
# As ExecuTorch's headers lay it out: the value begins 4 bytes after the option.
chip, domain, platform = (u32 * 3)(0, 57, 0), (u32 * 3)(2, 0, 1), (u32 * 3)(9, 9, 9)
given = [(0, chip), (1, platform), (0, domain)]
configs = [Config(option, ctypes.addressof(words)) for option, words in given]
listed = (pointer * 4)(*(ctypes.addressof(c) for c in configs), None)
device = pointer()
create = ctypes.CFUNCTYPE(ctypes.c_uint64, pointer, pointer, pointer)(slots[40])
made = create(5, ctypes.addressof(listed), ctypes.addressof(device))
empty = create(5, None, ctypes.addressof(device))
others = {ctypes.CFUNCTYPE(ctypes.c_uint64)(slots[i])() for i in range(72) if i != 40}
print(json.dumps([rc, count.value, made, empty, device.value, sorted(others)]))
"""


def proxy() -> Path:
    """The proxy that set-up has built."""
    path = QnnLibrary("", Path(), None).proxy
    assert path is not None
    return path


def test_only_the_configuration_of_devices_changes(tmp_path: Path) -> None:
    source = tmp_path / "real.cpp"
    source.write_text(REAL)
    real = tmp_path / "real.so"
    subprocess.run(
        ["g++", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(real)], check=True
    )
    answer = subprocess.run(
        [sys.executable, "-c", CALLER, str(proxy())],
        env={**os.environ, "ZOEXPORT_QNN_HTP": str(real)},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, result = answer.stdout.strip().splitlines()
    # The chip 57 and the domain's flag arrive where newer headers have them; the platform's description does not.
    assert first == "log 5 0:0,57,0 0:2,0,1 end"
    assert second == "log 5 end"
    assert json.loads(result) == [0, 1, 7, 7, 0x51, [42]]


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    probe = (
        "import ctypes, sys; a, b = ctypes.c_void_p(), ctypes.c_uint32()\n"
        "print(ctypes.CDLL(sys.argv[1]).QnnInterface_getProviders(ctypes.byref(a), ctypes.byref(b)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", probe, str(proxy())],
        env={**os.environ, "ZOEXPORT_QNN_HTP": str(tmp_path / "none.so")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "1" and "none.so" in answer.stderr
