"""What of the iOS app's build runs without a Mac: which MLX it takes, and what it asks Apple's compiler of Metal."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.hosts import ROOT, run

IOS = ROOT / "ios_app"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A copy of what make reads, and a repository with the header of the installed MLX, at its tag and at v0.1.0."""
    import mlx

    folder = tmp_path / "ios_app"
    shutil.copytree(IOS, folder, ignore=shutil.ignore_patterns("build", ".build"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    header = Path(next(iter(mlx.__path__))) / "include" / "mlx" / "version.h"
    (tmp_path / "git" / "mlx").mkdir(parents=True)
    shutil.copy(header, tmp_path / "git" / "mlx")
    git = ("git", "-C", tmp_path / "git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    run(*git, "init", "--quiet")
    run(*git, "add", ".")
    run(*git, "commit", "--quiet", "-m", "MLX")
    run(*git, "tag", f"v{pinned()}")
    run(*git, "tag", "v0.1.0")
    return folder


def pinned() -> str:
    """The version of MLX that writes bundles."""
    (found,) = set(re.findall(r'"mlx(?:\[cpu\])?==([^;]+);', (ROOT / "pyproject.toml").read_text()))
    return found


def make(app: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = ["make", "-C", str(app), f"MLX_GIT=file://{app.parent}/git", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_mlx_is_that_of_the_bundles(app: Path) -> None:
    target = f"build/mlx-{pinned()}"
    made = make(app, target)
    assert made.returncode == 0, made.stderr
    assert (app / target / "mlx" / "version.h").is_file()


def test_another_mlx_is_refused(app: Path) -> None:
    made = make(app, "build/mlx-0.1.0", "MLX_VERSION=0.1.0")
    assert made.returncode != 0
    assert f"tag v0.1.0 of file://{app.parent}/git holds MLX {pinned()}." in made.stderr
    assert list((app / "build").iterdir()) == []
    assert make(app, "build/mlx-0.2.0", "MLX_VERSION=0.2.0").returncode != 0  # no such tag
    assert not (app / "build" / "mlx-0.2.0").exists()


@pytest.mark.parametrize(
    ("sdk", "least"),
    [
        ("iphoneos", "-mios-version-min=18.0"),
        ("iphonesimulator", "-mios-simulator-version-min=18.0"),
    ],
)
def test_metal_is_compiled_for_the_phone(tmp_path: Path, sdk: str, least: str) -> None:
    real = tmp_path / "xcrun"
    real.write_text('#!/bin/sh\nfor one do echo "<$one>"; done\n')
    real.chmod(0o755)
    line = [IOS / "tools" / "xcrun", "-sdk", "macosx", "metal", "-mmacosx-version-min=18.0", "-c"]
    environment = {"ZOEXPORT_SDK": sdk, "ZOEXPORT_XCRUN": str(real)}
    output = run(*line, "a file.metal", environment=environment)
    wanted = ["-sdk", sdk, "metal", least, "-c", "a file.metal"]
    assert output.splitlines() == [f"<{one}>" for one in wanted]


def test_a_missing_sdk_is_said() -> None:
    line = [str(IOS / "tools" / "xcrun"), "-sdk", "macosx", "metal"]
    environment = {"ZOEXPORT_SDK": "macosx", "PATH": "/usr/bin:/bin"}
    made = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 1
    assert made.stderr.startswith("error: ZOEXPORT_SDK is 'macosx'")


def test_the_projects_description_names_files_that_are_there_or_are_made() -> None:
    target = yaml.safe_load((IOS / "App" / "project.yml").read_text("utf-8"))["targets"]["Zoexport"]
    rules = (IOS / "Makefile").read_text("utf-8")
    frameworks = [one["framework"] for one in target["dependencies"] if "framework" in one]
    assert frameworks == ["../build/Zoexport.xcframework"]
    assert "build/Zoexport.xcframework:" in rules
    (script,) = target["postBuildScripts"]
    assert script["inputFiles"] == ["$(PROJECT_DIR)/../build/$(PLATFORM_NAME)/mlx.metallib"]
    assert "-name mlx.metallib -exec cp {} build/$$sdk/" in rules
    # What continues in the background is registered under the app's identifier (BackgroundTraining.swift).
    permitted = target["info"]["properties"]["BGTaskSchedulerPermittedIdentifiers"]
    source = (IOS / "App" / "Sources" / "BackgroundTraining.swift").read_text("utf-8")
    assert permitted == ["org.zoexport.training", "$(PRODUCT_BUNDLE_IDENTIFIER).run.*"]
    assert f'"{permitted[0]}"' in source
    assert r'"\(Bundle.main.bundleIdentifier!).run.\(UUID().uuidString)"' in source
