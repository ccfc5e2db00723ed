"""The C interface itself: structs of older and newer callers, calls within calls, and what other threads may do."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import split_bundles
from tests.support.bundles import FROZEN, SLOT, LinearModel
from tests.support.sessions import open_session
from tests.support.signed import make_keys
from tests.support.split_bundles import SplitModel
from zoexport.core import manifest
from zoexport.core.errors import BundleError, Cancelled, ConfigError, ZoExportError
from zoexport.session import Dataset, Session, StepProgress, Tensor, abi, structs


class LongInfo(structs.Info):
    """zo_info of a release to come."""

    _fields_ = (("later", ctypes.c_uint64),)


class LongRun(structs.Run):
    """zo_run of a release to come."""

    _fields_ = (("later", ctypes.c_uint64),)


def open_with(bundle: Path, options: ctypes.Structure, size: int) -> None:
    options.struct_size = size
    handle = ctypes.c_void_p()
    given = ctypes.cast(ctypes.byref(options), ctypes.POINTER(structs.OpenOptions))
    abi.call("zo_session_open", abi.path_bytes(bundle), given, ctypes.byref(handle))
    abi.library().zo_session_close(handle)


def test_an_older_caller_leaves_out_what_came_later(bundle: Path) -> None:
    engine = structs.Engine(ctypes.sizeof(structs.Engine), None, structs.RUN_PROGRAM(lambda *_: 1))
    options = structs.OpenOptions(0, 0, 0, ctypes.pointer(engine))
    # What lies behind the struct of an older caller is not the folder's address.
    ctypes.memset(ctypes.addressof(options) + structs.OpenOptions.cache.offset, 0xFF, 8)
    open_with(bundle, options, structs.OpenOptions.cache.offset)
    for size in (0, 4, structs.OpenOptions.cache.offset - 1, 4097):
        with pytest.raises(ConfigError, match=rf"zo_open_options\.struct_size: found {size}"):
            open_with(bundle, options, size)
    engine.struct_size = 4
    with pytest.raises(ConfigError, match=r"zo_engine\.struct_size: found 4"):
        open_with(bundle, options, structs.OpenOptions.cache.offset)


class Engines(ctypes.Structure):
    """zo_engines, which Python has no use for."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("own", ctypes.c_char * 64),
        ("fallback", ctypes.c_char * 64),
    )


def engines_of(
    bundle: Path, size: int = ctypes.sizeof(Engines), keys: bytes | None = None
) -> tuple[str, str]:
    options = structs.sized(structs.OpenOptions)
    options.trusted_keys = keys
    found = Engines(struct_size=size)
    arguments = (abi.path_bytes(bundle), ctypes.byref(options), ctypes.byref(found))
    abi.call("zo_bundle_engines", *arguments)
    return found.own.decode(), found.fallback.decode()


def test_the_engines_of_a_bundle_are_those_of_its_manifest(bundle: Path, tmp_path: Path) -> None:
    assert engines_of(bundle) == ("test", "")
    content = manifest.read(bundle)
    program = content["programs"][0]["file"]
    content |= {"engine": "e" * 63 + "é", "fallback": {"engine": "executorch", "file": program}}
    content["bundle_id"] = manifest.bundle_id(content)
    (bundle / manifest.FILE).write_text(json.dumps(content))
    # No engine of such a name is asked for; what is too long is cut, at a character.
    assert engines_of(bundle) == ("e" * 63, "executorch")
    with pytest.raises(ConfigError, match=r"zo_engines\.struct_size: found 4"):
        engines_of(bundle, size=4)
    keys = make_keys(tmp_path / "keys")
    with pytest.raises(BundleError, match="no signature"):
        engines_of(bundle, keys=keys.pub.read_bytes())
    with pytest.raises(BundleError, match="no such folder"):
        engines_of(tmp_path / "none")


def test_a_request_of_an_older_caller_has_no_engine(bundle: Path, tmp_path: Path) -> None:
    handle = ctypes.c_void_p()
    abi.call("zo_job_open", abi.path_bytes(tmp_path / "job"), ctypes.byref(handle))
    job, options = handle.value, structs.sized(structs.OpenOptions)
    data = tmp_path / "data.jsonl"
    request = structs.JobRequest(
        bundle=abi.path_bytes(bundle), data=abi.path_bytes(data), steps=1, engine_name=b"mlx"
    )
    for size, said in (
        (structs.JobRequest.engine_name.offset, "found the engine test"),
        (ctypes.sizeof(structs.JobRequest), "engine: found mlx; expected test"),
    ):
        request.struct_size = size
        with pytest.raises(ZoExportError, match=said):
            abi.call("zo_job_start", job, ctypes.byref(request), 0, ctypes.byref(options))
    abi.library().zo_job_close(handle)


def test_an_older_info_has_no_bytes_of_a_device(bundle: Path) -> None:
    with open_session(bundle) as session:
        info = structs.Info(struct_size=structs.Info.device_bytes.offset, device_bytes=77)
        abi.call("zo_session_info", session.handle, ctypes.byref(info))
        assert (info.rows, info.device_bytes) == (2, 77)
        assert session.info.device_bytes == 0


def test_an_engine_that_counts_no_kernels_has_none(bundle: Path) -> None:
    with open_session(bundle) as session:
        # Python has no use for the call, and does not know its types.
        handle, room = ctypes.c_void_p(session.handle), ctypes.create_string_buffer(64)
        with pytest.raises(ConfigError, match="index: found 0; expected below 0"):
            abi.call("zo_session_kernel_cost", handle, 0, room)


def test_an_older_run_keeps_what_it_does_not_know(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "split", settings={"weight_decay": 0.25})
    with Session.open(path, engine=SplitModel()) as session:
        session.configure(clip=2.0, checkpoint_every=3)
        run = structs.Run(struct_size=structs.Run.momentum.offset, momentum=9.0)
        abi.call("zo_session_run", session.handle, ctypes.byref(run))
        assert (run.lr, run.momentum) == (0.02, 9.0)
        run.lr = 0.5
        abi.call("zo_session_configure", session.handle, ctypes.byref(run))
        now = session.run
        assert (now.lr, now.weight_decay, now.clip, now.checkpoint_every) == (0.5, 0.25, 2.0, 3)


def test_a_newer_caller_gets_and_gives_zero(bundle: Path) -> None:
    with open_session(bundle) as session:
        info = LongInfo(struct_size=ctypes.sizeof(LongInfo), later=77)
        pointer = ctypes.cast(ctypes.byref(info), ctypes.POINTER(structs.Info))
        abi.call("zo_session_info", session.handle, pointer)
        assert (info.rows, info.later, info.struct_size) == (2, 0, ctypes.sizeof(LongInfo))

        run = LongRun(struct_size=ctypes.sizeof(LongRun))
        given = ctypes.cast(ctypes.byref(run), ctypes.POINTER(structs.Run))
        abi.call("zo_session_run", session.handle, given)
        run.lr = 0.125
        abi.call("zo_session_configure", session.handle, given)
        assert session.run.lr == 0.125
        run.later = 1
        with pytest.raises(ConfigError, match="zo_run: found a field that this library does not"):
            abi.call("zo_session_configure", session.handle, given)
        with pytest.raises(ConfigError, match=r"zo_info\.struct_size: found 0"):
            abi.call("zo_session_info", session.handle, ctypes.byref(structs.Info()))


def test_a_call_from_within_a_call_is_refused(bundle: Path, dataset: Dataset) -> None:
    refused: list[str] = []

    def attempt(session: Session) -> None:
        for call in (session.save, lambda: session.info, lambda: session.evaluate(dataset)):
            with pytest.raises(ConfigError, match="found a call from within a call"):
                call()
            refused.append("")

    class Calling(LinearModel):
        def __call__(
            self, program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
        ) -> None:
            attempt(opened)
            super().__call__(program, inputs, outputs)

    with Session.open(bundle, engine=Calling()) as opened, open_session(bundle) as plain:

        def on_progress(_: StepProgress) -> None:
            attempt(opened)

        opened.train(dataset, 2, on_progress)
        plain.train(dataset, 2)
        assert [opened.record(i) for i in range(2)] == [plain.record(i) for i in range(2)]
    assert len(refused) >= 12


def test_closing_from_within_takes_effect_afterwards(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    session = open_session(bundle, tmp_path / "state")
    session.train(dataset, 3, lambda progress: session.close() if progress.step == 1 else None)
    # The lock was released: the state can be trained again.
    with open_session(bundle, tmp_path / "state") as again:
        assert again.info.steps == 3


def test_another_thread_cancels(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    with open_session(bundle, tmp_path / "state") as session:
        session.cancel()  # nothing runs: nothing happens
        session.train(dataset, 2)
        begun = threading.Event()
        other = threading.Thread(target=lambda: (begun.wait(), session.cancel()))
        other.start()

        def on_progress(progress: StepProgress) -> None:
            if progress.step == 5:
                begun.set()
                other.join()

        with pytest.raises(Cancelled, match="step 5 of 1000"):
            session.train(dataset, 1000, on_progress)
        assert session.info.steps == 5
        session.train(dataset, 6)
    assert (tmp_path / "state" / "snapshot-4.safetensors").exists()


def test_a_slot_by_name(bundle: Path) -> None:
    with open_session(bundle) as session:
        assert [session.slot(name) for name in (SLOT, FROZEN)] == session.slots()
        with pytest.raises(ConfigError, match="slot other: found no such slot"):
            session.slot("other")
