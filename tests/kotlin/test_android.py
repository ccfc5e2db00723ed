"""The whole Android app, its types checked against declarations of API 36; what needs no Android runs elsewhere."""

from __future__ import annotations

import hashlib
import re
import subprocess
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

import pytest

from tests.kotlin.conftest import JSON, QUICK
from tests.support import android_stubs
from tests.support.hosts import ROOT, run
from zoexport.core.errors import DataError
from zoexport.core.fetch import downloaded
from zoexport.tools.device.runs import RECEIVER

APP = ROOT / "android_app" / "app" / "src" / "main"
SESSION = ROOT / "android_app" / "session" / "src" / "main" / "kotlin"
RES = APP / "res"
ANDROID = "{http://schemas.android.com/apk/res/android}"


@pytest.fixture(scope="session")
def declarations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Android's API, as far as the app names it, and the app's resources."""
    folder = tmp_path_factory.mktemp("android")
    with downloaded(android_stubs.PACKAGE, DataError) as wheel, zipfile.ZipFile(wheel) as content:
        content.extractall(folder / "stubs")
    sources = (APP / "kotlin").rglob("*.kt")
    stubs = android_stubs.Stubs(folder / "stubs")
    assert stubs.write(folder / "java", android_stubs.imports(sources)) > 100
    android_stubs.write_resources(RES, "zoexport.app", folder / "java")
    return folder / "java"


@pytest.mark.parity
@pytest.mark.network
def test_the_app_has_the_types_of_android(kotlin: Path, declarations: Path, tmp_path: Path) -> None:
    lib = kotlin / "lib"
    options = ["-jvm-target", "17", "-cp", f"{lib / 'kotlinx-coroutines-core-jvm.jar'}:{JSON}"]
    compiler = kotlin / "bin" / "kotlinc"
    run(
        compiler,
        "-Werror",
        *options,
        "-d",
        tmp_path / "app.jar",
        SESSION,
        APP / "kotlin",
        declarations,
        environment=QUICK,
    )
    # The declarations tell right from wrong.
    wrong = tmp_path / "Wrong.kt"
    wrong.write_text(
        "fun wrong(context: android.content.Context) {\n"
        "    context.startForegroundService(1)\n"
        "    context.getString(zoexport.app.R.string.nothing)\n"
        '    val small: Int = android.os.StatFs("").availableBytes\n'
        "    object : android.app.Service() {}.onNothing()\n"
        "}\n"
    )
    line = [compiler, *options, "-d", tmp_path / "wrong.jar", wrong, declarations]
    found = subprocess.run(list(map(str, line)), capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert set(re.findall(r"Wrong[.]kt:(\d)", found.stderr)) == {"2", "3", "4", "5"}


def strings(folder: str) -> dict[str, str]:
    root = ElementTree.parse(RES / folder / "strings.xml").getroot()
    return {element.attrib["name"]: element.text or "" for element in root}


def test_every_language_says_everything() -> None:
    english = strings("values")
    used = " ".join(path.read_text("utf-8") for path in (APP / "kotlin").rglob("*.kt"))
    used += (APP / "AndroidManifest.xml").read_text("utf-8").replace("@string/", "R.string.")
    assert set(re.findall(r"R[.]string[.](\w+)", used)) == set(english)
    for folder in RES.glob("values-??"):
        other = strings(folder.name)
        assert set(other) == set(english) - {"app_name"}
        for name, text in other.items():
            holes = [
                sorted(re.findall(r"%\d[$][^a-z]*[a-z]", one)) for one in (text, english[name])
            ]
            assert holes[0] == holes[1], name


def test_the_manifest_names_classes_and_resources_that_are_there() -> None:
    root = ElementTree.parse(APP / "AndroidManifest.xml").getroot()
    named = [
        element.attrib[f"{ANDROID}name"]
        for element in root.iter()
        if element.tag in ("application", "activity", "service", "receiver", "provider")
    ]
    assert len(named) == 6
    for name in named:
        path = APP / "kotlin" / "zoexport" / "app" / f"{name[1:].replace('.', '/')}.kt"
        assert f"class {path.stem}" in path.read_text("utf-8")
    for kind, name in re.findall(
        r'"@(drawable)/(\w+)"', (APP / "AndroidManifest.xml").read_text("utf-8")
    ):
        assert (RES / kind / f"{name}.xml").is_file()


def test_only_the_shell_brings_bundles() -> None:
    """What ``device push --app`` calls is there, and closed to other apps."""
    package, _, name = RECEIVER.partition("/")
    assert f'applicationId = "{package}"' in (APP.parents[1] / "build.gradle.kts").read_text()
    receivers = ElementTree.parse(APP / "AndroidManifest.xml").getroot().iter("receiver")
    named = {f"zoexport.app{one.attrib[f'{ANDROID}name']}": one for one in receivers}
    assert set(named) == {name}
    assert named[name].attrib[f"{ANDROID}permission"] == "android.permission.DUMP"


def _built(folder: Path, **environment: str) -> tuple[int, str, list[str]]:
    """What build-executorch says with a CMake that only notes how it is called, and these notes."""
    script = folder / "build-executorch"
    script.write_text((ROOT / "android_app" / "build-executorch").read_text())
    (folder / "executorch" / "source").mkdir(parents=True, exist_ok=True)
    (folder / "executorch" / "source" / ".complete").touch()
    toolchain = folder / "ndk" / "build" / "cmake" / "android.toolchain.cmake"
    toolchain.parent.mkdir(parents=True, exist_ok=True)
    toolchain.touch()
    cmake = folder / "bin" / "cmake"
    cmake.parent.mkdir(exist_ok=True)
    cmake.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n')
    cmake.chmod(0o755)
    path = f"{cmake.parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", script],
        env={"PATH": path, "ANDROID_NDK_HOME": str(folder / "ndk"), **environment},
        capture_output=True,
        text=True,
    )
    calls = folder / "calls"
    return (
        done.returncode,
        done.stdout + done.stderr,
        calls.read_text().splitlines() if calls.exists() else [],
    )


def test_qualcomms_libraries_are_packed_where_there_is_an_sdk(tmp_path: Path) -> None:
    sdk = tmp_path / "sdk"
    phone = sdk / "lib" / "aarch64-android"
    names = ["libQnnHtp.so", "libQnnSystem.so", "libQnnGpu.so"]
    for version in ("73", "75"):
        skeletons = sdk / "lib" / f"hexagon-v{version}" / "unsigned"
        skeletons.mkdir(parents=True)
        (skeletons / f"libQnnHtpV{version}Skel.so").touch()
        names.append(f"libQnnHtpV{version}Stub.so")
    phone.mkdir()
    for name in names:
        (phone / name).touch()
    (tmp_path / "with").mkdir()
    code, said, calls = _built(tmp_path / "with", QNN_SDK_ROOT=str(sdk), QNN_HTP="75")
    assert code == 0, said
    packed = tmp_path / "with" / "executorch" / "jniLibs"
    assert [folder.name for folder in packed.iterdir()] == ["arm64-v8a"]
    assert {file.name for file in (packed / "arm64-v8a").iterdir()} == {
        *("libQnnHtp.so", "libQnnSystem.so", "libQnnHtpV75Stub.so", "libQnnHtpV75Skel.so"),
    }
    asked = [call for call in calls if "-DEXECUTORCH_BUILD_QNN=ON" in call]
    assert len(asked) == 1 and "-DANDROID_ABI=arm64-v8a" in asked[0]


def test_without_an_sdk_it_says_what_the_app_will_lack(tmp_path: Path) -> None:
    code, said, calls = _built(tmp_path)
    assert code == 0 and "built without the NPU" in said
    assert not any("QNN" in call for call in calls)
    code, said, _ = _built(tmp_path, QNN_SDK_ROOT=str(tmp_path / "other"))
    assert code == 1 and "QNN_SDK_ROOT must be the SDK's folder" in said


def test_the_wrapper_is_gradles_own() -> None:
    """By the hash that Gradle publishes for the wrapper of 9.4.1, which starts any version."""
    jar = ROOT / "android_app" / "gradle" / "wrapper" / "gradle-wrapper.jar"
    expected = "55243ef57851f12b070ad14f7f5bb8302daceeebc5bce5ece5fa6edb23e1145c"
    assert hashlib.sha256(jar.read_bytes()).hexdigest() == expected
