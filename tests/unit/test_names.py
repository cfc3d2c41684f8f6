"""Our module names are not ours alone; a stranger in the way is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["projector", "inbox"])
def test_a_foreign_outbox_is_a_clear_error(package: str, tmp_path: Path):
    """Another distribution's `outbox` on the path: the error says where it is and what to do."""
    (tmp_path / "outbox.py").write_text("class Somebody: ...\n")
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import {package}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert "ImportError" in result.stderr
    assert str(tmp_path / "outbox.py") in result.stderr
    assert "pip uninstall outbox" in result.stderr
