"""Adapters on a stand-in of the Hugging Face Hub: what is uploaded, the model card, and refusals."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compiled import Compiler
from zoexport.adapters.peft import read_settings
from zoexport.api import Bundle
from zoexport.core.errors import ConfigError
from zoexport.run import hub

pytestmark = pytest.mark.parity
TOKEN = "hf_stand_in"
SECRET = "a box under the old bridge"
PUSH = """
import sys
from pathlib import Path
from zoexport import Bundle, Run
output, bundle, repo = sys.argv[1:]
print(Run(Path(output), Bundle.open(bundle), None, (), False).push_to_hub(repo))
"""


class StandIn(BaseHTTPRequestHandler):
    """Answers what create_repo and upload_folder ask; ``me`` may write, others may not."""

    server: Hub

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer(404, {"error": "Repository not found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        parts = self.path.strip("/").split("/")
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid username or password."})
        elif parts[1:] == ["repos", "create"]:
            asked = json.loads(body)
            owner = asked.get("organization") or "me"
            if owner != "me":
                self._answer(403, {"error": f"You don't have the rights to write to {owner}."})
                return
            self.server.created.append(asked)
            self._answer(200, {"url": f"{self.server.address}/{owner}/{asked['name']}"})
        elif parts[1:] == ["validate-yaml"]:
            self.server.cards.append(json.loads(body))
            self._answer(200, {"errors": [], "warnings": []})
        elif parts[4] == "preupload":
            files = json.loads(body)["files"]
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            self._answer(200, {"files": [{"path": one["path"], **regular} for one in files]})
        else:
            assert parts[4:] == ["commit", "main"]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.files[line["value"]["path"]] = content
            url = f"{self.server.address}/{parts[2]}/{parts[3]}/commit/1"
            self._answer(200, {"success": True, "commitOid": "1" * 40, "commitUrl": url})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Hub(ThreadingHTTPServer):
    """The stand-in; ``files`` are those of the last commits."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StandIn)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.created: list[dict[str, Any]] = []
        self.cards: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}

    def run(self, *line: object, home: Path, token: str | None = TOKEN) -> Any:
        """Run a Python process that talks to this hub."""
        ours = {"HF_ENDPOINT": self.address, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        ours |= {} if token is None else {"HF_TOKEN": token}
        command = [sys.executable, *map(str, line)]
        return subprocess.run(command, env=kept | ours, capture_output=True, text=True)


@pytest.fixture
def served() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def output(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like finetune's, with a run on a person's examples."""
    folder = tmp_path_factory.mktemp("hub") / "mails"
    bundle = Bundle.open(_bundle(compiler))
    rows = [{"prompt": f"Where is {n}?", "completion": f" {SECRET}"} for n in range(12)]
    bundle.train(rows, state=folder / "run", steps=4, eval_data=rows[:3])
    bundle.export_adapter(folder / "adapter", state=folder / "run")
    return folder


def _bundle(compiler: Compiler) -> Path:
    settings = {"lora__target_modules": "all-linear", "learning_rate": 0.05, "max_length": 48}
    return compiler.bundle("llama", "mebp", generate=True, **settings)


def test_run_is_pushed_with_its_card(
    compiler: Compiler, served: Hub, output: Path, tmp_path: Path
) -> None:
    done = served.run("-c", PUSH, output, _bundle(compiler), "me/mails", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{served.address}/me/mails"
    assert [one["name"] for one in served.created] == ["mails"]
    local = {path.name: path.read_bytes() for path in (output / "adapter").iterdir()}
    assert served.files == local
    assert local.keys() == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    card = local["README.md"].decode()
    assert [one["content"] for one in served.cards] == [card]
    front = yaml.safe_load(card.split("---\n")[1])
    # The base model is a local folder here, which is not named.
    assert front == {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["zoexport", "mebp", "lora"],
    }
    assert read_settings(_bundle(compiler)).base_model not in card
    assert SECRET not in card
    for fact in (
        "| Base model | llama |",
        "| Steps | 4 |",
        "| Training examples | 12 |",
        "| Validation examples | 3 |",
        "| `learning_rate` | `0.05` |",
        "| `lora.r` | `4` |",
        'PeftModel.from_pretrained(model, "me/mails")',
        "hf download me/mails --local-dir adapter",
    ):
        assert fact in card
    evaluations = hub.describe_state(output / "run")["validation"]["evaluations"]
    losses = f"{evaluations[0]['loss']:.4g} → {evaluations[-1]['loss']:.4g}"
    assert f"| Validation loss, before and after | {losses} |" in card


def test_adapter_export_pushes(
    compiler: Compiler, served: Hub, output: Path, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    line = ["-m", "zoexport", "adapter", "export", _bundle(compiler), "--state", output / "run"]
    line += ["-o", adapter, "--push-to-hub", "mails", "--json"]
    done = served.run(*line, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["url"] == f"{served.address}/me/mails"
    assert served.files["README.md"] == (adapter / "README.md").read_bytes()


@pytest.mark.parametrize(
    ("repo", "token", "message"),
    [
        ("me/mails", None, "found no login; expected an access token"),
        ("me/mails", "hf_other", "found the answer 401 (Invalid username or password.)"),
        ("someone/mails", TOKEN, "found the answer 403 (You don't have the rights to write"),
        ("me/a/b", TOKEN, "expected owner/name. Correct the name."),
    ],
)
def test_refusals_are_one_message(
    compiler: Compiler,
    served: Hub,
    output: Path,
    tmp_path: Path,
    repo: str,
    token: str | None,
    message: str,
) -> None:
    line = ["-m", "zoexport", "adapter", "export", _bundle(compiler), "--state", output / "run"]
    line += ["-o", tmp_path / "adapter", "--push-to-hub", repo]
    done = served.run(*line, home=tmp_path, token=token)
    assert (done.returncode, served.files) == (2, {})
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_card_names_a_base_model_of_the_hub(compiler: Compiler, tmp_path: Path) -> None:
    """And a card that a person has taken over stays."""
    opened = Bundle.open(_bundle(compiler))
    bundle = Bundle(tmp_path, {**opened.manifest, "model": {**opened.manifest["model"]}})
    bundle.manifest["model"]["source"] = "owner/base-1B"
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    hub.write_card(adapter, bundle, state=None)
    card = (adapter / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["base_model"] == "owner/base-1B"
    assert "zoexport compile owner/base-1B --target host --method mebp -o model.bundle" in card
    (adapter / "README.md").write_text("mine")
    hub.write_card(adapter, bundle, state=None)
    assert (adapter / "README.md").read_text() == "mine"


def test_file_has_no_card(compiler: Compiler, tmp_path: Path) -> None:
    file = tmp_path / "adapter.gguf"
    file.touch()
    with pytest.raises(ConfigError, match="found a file; expected a folder"):
        hub.push_to_hub(file, "me/mails", token=TOKEN)


def test_missing_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", None)
    with pytest.raises(ConfigError, match="pip install huggingface_hub"):
        hub.push_to_hub(tmp_path, "me/mails")
