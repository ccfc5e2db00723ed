"""Find and load Qualcomm's QNN libraries.

They come from an official SDK (environment variable QNN_SDK_ROOT) or from the wheel
``onnxruntime-qnn`` on PyPI, the extra ``android-npu``. ExecuTorch's backend loads ``libQnnHtp.so``
by its bare name: it gets a library of that name that is already in the process, regardless of
LD_LIBRARY_PATH. For an SDK this is the SDK's library; for the wheel, newer than the headers that
ExecuTorch was compiled with, it is zoexport's proxy (``runtime_ops/qnn/htp_proxy.cpp``).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zoexport.core.errors import Problem, ZoExportError
from zoexport.core.native import FIX, native_folder

SDK_ROOT = "QNN_SDK_ROOT"
EXTRA = "android-npu"
LICENCE = (
    "QNN is Qualcomm's: its licence (Qualcomm_LICENSE.pdf in the package, LICENSE.pdf in an SDK) allows it for "
    "developing your own applications and not for passing it on"
)
_PACKAGE = "onnxruntime_qnn"
CXX_LIBRARIES = ("libgcc_s.so.1", "libstdc++.so.6")
_LIBRARIES = ("libQnnHtp.so", "libQnnSystem.so")
_HOST = Path("lib") / "x86_64-linux-clang"
REAL_LIBRARY = "ZOEXPORT_QNN_HTP"
# The functions of QnnInterface_t begin after 40 bytes; the fifth gives the build's id.
_FUNCTIONS, _GET_BUILD_ID = 40, 4


@dataclasses.dataclass(frozen=True)
class QnnLibrary:
    """QNN's libraries for this machine.

    Attributes:
        source: what they come from, for people.
        folder: where ``libQnnHtp.so`` and ``libQnnSystem.so`` are.
        root: the SDK, or None for the wheel.
    """

    source: str
    folder: Path
    root: Path | None

    @property
    def proxy(self) -> Path | None:
        """The library that stands before the wheel's; an SDK's is used as it is."""
        return native_folder() / "qnn" / "libQnnHtp.so" if self.root is None else None

    @property
    def real(self) -> Path:
        """Path of QNN's own library, which the proxy reads from the variable :data:`REAL_LIBRARY`."""
        return self.folder / "libQnnHtp.so"

    def libraries(self) -> list[Path]:
        """Return ExecuTorch's QNN backend and the libraries that it needs, in the order of loading."""
        backend = importlib.util.find_spec("executorch")
        places = (backend.submodule_search_locations if backend else None) or [""]
        return [
            Path(next(iter(places))) / "lib" / "libexecutorch_backend_qnn.so",
            self.folder / "libQnnSystem.so",
            self.proxy or self.real,
        ]


def find() -> QnnLibrary | Problem:
    """Find the libraries without loading them; return the problem if there are none."""
    where = "Qualcomm's QNN libraries"
    ways = f"Set {SDK_ROOT} to an official QNN SDK, or pip install 'zoexport[{EXTRA}]'. {LICENCE}."
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        reason = f"they compile for the NPU on x86-64 Linux only, and this is {sys.platform}"
        return Problem(where, reason, "Compile on another machine.")
    named = os.environ.get(SDK_ROOT)
    if named:
        library = QnnLibrary(f"{SDK_ROOT}={named}", Path(named) / _HOST, Path(named))
    else:
        package = importlib.util.find_spec(_PACKAGE)
        places = package.submodule_search_locations if package else None
        if not places:
            return Problem(where, f"{SDK_ROOT} is not set and onnxruntime-qnn not installed", ways)
        library = QnnLibrary("the package onnxruntime-qnn", Path(next(iter(places))), None)
    for name in _LIBRARIES:
        if not (library.folder / name).is_file():
            return Problem(where, f"{library.source} has no {library.folder / name}", ways)
    if library.proxy is not None and not library.proxy.is_file():
        reason = f"no {library.proxy}, through which ExecuTorch uses {library.source}"
        return Problem(where, reason, FIX)
    return library


def _found() -> QnnLibrary:
    library = find()
    if isinstance(library, Problem):
        raise ZoExportError(
            library.where, found=library.reason, expected="QNN's libraries", fix=library.fix
        )
    return library


@functools.cache
def load() -> QnnLibrary:
    """Load the libraries and ExecuTorch's QNN backend into this process, once.

    The system's C++ library is loaded first and globally: QNN brings another copy, which ExecuTorch
    makes visible to later libraries. With it, their first exception would crash.

    Raises:
        ZoExportError: QNN is not there or cannot be loaded.
    """
    library = _found()
    os.environ[REAL_LIBRARY] = str(library.real)
    for path in (*CXX_LIBRARIES, *library.libraries()):
        try:
            ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL if path in CXX_LIBRARIES else os.RTLD_LOCAL)
        except OSError as error:
            raise ZoExportError(
                str(path),
                found=str(error),
                expected="a library that can be loaded",
                fix="Install the library that it names (on Debian: libatomic1).",
            ) from error
    return library


@contextlib.contextmanager
def lowering() -> Iterator[QnnLibrary]:
    """While this is open, ExecuTorch's compiler for QNN finds the libraries, and does not download an SDK.

    Raises:
        ZoExportError: see :func:`load`.
    """
    library = load()
    before = os.environ.get(SDK_ROOT)
    with tempfile.TemporaryDirectory(prefix="zoexport-qnn-") as folder:
        if library.root is None:
            # The layout of an SDK, as far as ExecuTorch looks at it.
            (Path(folder) / _HOST.parent).mkdir()
            (Path(folder) / _HOST).symlink_to(library.folder)
            os.environ[SDK_ROOT] = folder
        try:
            yield library
        finally:
            if before is None:
                os.environ.pop(SDK_ROOT, None)
            else:
                os.environ[SDK_ROOT] = before


def build_id() -> str:
    """QNN's own name for its version, such as v2.51.0.260929181845. Loads the libraries.

    Raises:
        ZoExportError: see :func:`load`; or the library does not say.
    """
    load()
    library = ctypes.CDLL("libQnnHtp.so")
    providers = ctypes.POINTER(ctypes.c_void_p)()
    count = ctypes.c_uint32()
    failed = library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count))
    if failed or not count.value or not providers[0]:
        raise ZoExportError(
            "libQnnHtp.so",
            found="no interface",
            expected="QNN's interface",
            fix="Install QNN again.",
        )
    slots = ctypes.cast(providers[0] + _FUNCTIONS, ctypes.POINTER(ctypes.c_void_p))
    get = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.POINTER(ctypes.c_char_p))(slots[_GET_BUILD_ID])
    text = ctypes.c_char_p()
    get(ctypes.byref(text))
    return (text.value or b"unknown").decode()
