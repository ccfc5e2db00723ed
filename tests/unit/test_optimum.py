"""optimum: what its TasksManager says of models' folders, and ``optimum-cli export zoexport``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import save_tiny
from zoexport import models
from zoexport.cli.main import run
from zoexport.core.errors import ModelError
from zoexport.core.tasks import CAUSAL, MASKED
from zoexport.session import Bundle

FAST = (
    "--set",
    "max_length=8",
    "--set",
    "weights=fp32",
    "--set",
    "lora.layers_to_transform=last:1",
)
WANTED = "expected the task text-generation of the library transformers"


def _json(path: Path, **content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _image_model(folder: Path) -> None:
    import transformers

    config = transformers.ViTConfig(architectures=["ViTForImageClassification"])
    config.save_pretrained(folder)


def _unknown_architecture(folder: Path) -> None:
    _json(folder / "config.json", model_type="no-such-type", architectures=["NoSuchForCausalLM"])


def _timm(folder: Path) -> None:
    _json(folder / "config.json", architecture="resnet50", pretrained_cfg={"num_classes": 1000})


def _diffusers(folder: Path) -> None:
    _json(folder / "model_index.json", _class_name="StableDiffusionPipeline")
    _json(folder / "unet" / "config.json", _class_name="UNet2DConditionModel")


def _sentence_transformers(folder: Path) -> None:
    save_tiny("bert", folder, tokenizer=False)
    content = json.loads((folder / "config.json").read_text())
    _json(folder / "config.json", **{**content, "architectures": ["BertModel"]})
    _json(folder / "config_sentence_transformers.json")


def _translation(folder: Path) -> None:
    _json(folder / "config.json", model_type="t5", architectures=["T5ForConditionalGeneration"])


REFUSED: dict[Callable[[Path], None], tuple[str, ...]] = {
    _image_model: (
        "ViTForImageClassification (model type 'vit')",
        "the task image-classification of the library transformers",
    ),
    _unknown_architecture: (
        "the model type 'no-such-type'",
        "for which the library transformers has no task",
    ),
    _timm: ("the resnet50 of the library timm", "the task image-classification"),
    _diffusers: (
        "the StableDiffusionPipeline of the library diffusers",
        "the task image-to-image or inpainting or text-to-image",
    ),
    _sentence_transformers: (
        "BertModel (model type 'bert'), an encoder",
        "the task feature-extraction of the library sentence_transformers",
    ),
    _translation: (
        "T5ForConditionalGeneration (model type 't5'), an encoder and a decoder",
        "the task text2text-generation of the library transformers",
    ),
}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attempt to reach a hub is a failure, even where HF_HUB_OFFLINE is not set."""

    def refuse(*_: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def optimum(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """``optimum-cli export zoexport`` in this process."""
    from optimum.commands import optimum_cli

    monkeypatch.setattr(sys, "argv", ["optimum-cli", "export", "zoexport", *arguments])
    with pytest.raises(SystemExit) as end:
        optimum_cli.main()
    return int(end.value.code or 0)


# ---- tasks and libraries ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_other_tasks_and_libraries_are_named(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "model")
    for weights in (True, False):
        with pytest.raises(ModelError) as raised:
            models.resolve(str(tmp_path / "model"), weights=weights)
        message = str(raised.value)
        assert all(part in message for part in (str(tmp_path), *REFUSED[make], WANTED, MASKED))


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("name", "loader"), [("llama", "AutoModelForCausalLM"), ("bert", "AutoModelForMaskedLM")]
)
def test_the_loader_of_a_task(name: str, loader: str, tmp_path: Path) -> None:
    from zoexport.models.language import auto_class, language_config

    save_tiny(name, tmp_path, tokenizer=False)
    assert auto_class(language_config(tmp_path, "here")).__name__ == loader


def test_tasks_are_those_that_optimum_has() -> None:
    from optimum.exporters.tasks import TasksManager

    assert {CAUSAL, MASKED} <= set(TasksManager.get_all_tasks())


def test_a_class_that_sees_images_too_is_loaded_as_its_language_model(tmp_path: Path) -> None:
    """optimum finds Gemma 3's class under image-to-text; a body is under feature-extraction."""
    from transformers import Gemma3Config

    Gemma3Config(architectures=["Gemma3ForConditionalGeneration"]).save_pretrained(tmp_path)
    assert models.resolve(str(tmp_path), weights=False).kind == "directory"
    _json(tmp_path / "config.json", model_type="llama", architectures=["LlamaModel"])
    assert models.resolve(str(tmp_path), weights=False).kind == "directory"


# ---- optimum-cli ------------------------------------------------------------------------------------------------


def test_it_is_listed_and_its_registration_is_light() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "--help"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "zoexport Compile a language model into a bundle" in " ".join(done.stdout.split())
    probe = (
        "import sys, optimum.commands.register.register_zoexport as found\n"
        "assert found.REGISTER_COMMANDS[0][0].COMMAND.name == 'zoexport'\n"
        "heavy = {'torch', 'transformers', 'executorch', 'numpy', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_namespaces_stay_open() -> None:
    """A file __init__.py would hide optimum's own modules, or other exporters' commands."""
    import optimum
    import optimum.commands.register

    for package in (optimum, optimum.commands, optimum.commands.register):
        assert getattr(package, "__file__", None) is None


def test_its_options_are_those_of_compile(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from zoexport.cli.compile import compile_verb

    assert optimum(["--help"], monkeypatch) == 0
    text = capfd.readouterr().out
    for option in compile_verb.params:
        assert option.name in ("model", "output") or option.opts[-1] in text
    assert "--model" in text and "OUT" in text


def test_both_commands_make_the_same_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = str(save_tiny("llama", tmp_path / "llama"))
    own, through = tmp_path / "own", tmp_path / "through-optimum"
    shared = ["--target", "host", "--method", "prge", *FAST, "--set", "num_queries=1", "--json"]
    assert run(["compile", folder, *shared, "-o", str(own)]) == 0
    capfd.readouterr()
    assert optimum(["--model", folder, *shared, str(through)], monkeypatch) == 0
    (line,) = capfd.readouterr().out.splitlines()
    assert json.loads(line)["bundle"] == str(through)
    first, second = (Bundle.open(bundle).manifest for bundle in (own, through))
    assert first["bundle_id"] == second["bundle_id"]
    assert first["settings"]["num_queries"] == 1 and first["settings"]["max_length"] == 8
    # It is there now, which both say in the same words.
    assert optimum(["--model", folder, *shared, str(own)], monkeypatch) == 2
    again = capfd.readouterr()
    assert run(["compile", folder, *shared, "-o", str(own)]) == 2
    assert capfd.readouterr() == again


@pytest.mark.parametrize(
    "make", [_image_model, _unknown_architecture, _timm, _diffusers], ids=lambda make: make.__name__
)
def test_refusals_are_one_message(
    make: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    make(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    shared = ["--target", "host"]
    assert optimum(["--model", "model", *shared, "bundle"], monkeypatch) == 1
    through = capfd.readouterr()
    assert run(["compile", "model", *shared, "-o", "bundle"]) == 1
    assert capfd.readouterr() == through
    (line,) = through.err.splitlines()
    assert through.out == "" and line.startswith("error: model")
    assert all(part in line for part in (*REFUSED[make], WANTED))
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--model", "m", "--target", "no-such-target", "out"], 2),
        (["--model", "m", "--target", "host", "--set", "no-such-key=1", "out"], 2),
        (["--model", "./nothing", "--target", "host", "out"], 1),
        (["--target", "host", "out"], 2),
    ],
)
def test_wrong_arguments(
    arguments: list[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert optimum(arguments, monkeypatch) == code
    out, err = capfd.readouterr()
    assert out == "" and err.count("error: ") == 1 and not os.listdir(tmp_path)
