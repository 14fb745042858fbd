"""The notebook with its outputs: `python docs/tools/notebook.py` runs examples/tour.ipynb and writes it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples/tour.ipynb"


def run() -> Any:
    """Return the notebook after a run: what was printed to stdout, the values and the pictures, without times."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=240, record_timing=False, resources={"metadata": {"path": NOTEBOOK.parent}}
    ).execute()
    notebook.metadata["language_info"] = {"name": "python"}  # without its version
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [part for part in cell.outputs if part.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    import nbformat

    nbformat.write(run(), NOTEBOOK)
    print(f"wrote {NOTEBOOK.name}")
