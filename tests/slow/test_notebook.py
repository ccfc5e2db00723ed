"""Every cell of the notebook runs, with a tiny model in place of the one that it names."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.compiled import Compiler

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "first-run.ipynb"


def test_every_cell_runs(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOEXPORT_NOTEBOOK_MODEL", str(compiler.model("llama_tied")))
    monkeypatch.setenv("ZOEXPORT_NOTEBOOK_FOLDER", str(tmp_path / "first-run"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [
        cell.outputs[-1]["data"]["text/plain"] for cell in notebook.cells if cell.get("outputs")
    ]
    assert len(shown) == 5
    assert "'mebp'" in shown[0] and "adapter_model.safetensors" in shown[-1]
    assert (tmp_path / "first-run" / "adapter" / "adapter_config.json").is_file()
