"""What the README and the docs show, runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def programs() -> list[Path]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if FENCE.search(page.read_text(encoding="utf-8"))]


def run(source: str, folder: Path, database: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(source, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-W", "error", program],
        env={**os.environ, "DATABASE_URL": database},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_there_are_pages_to_run():
    """The collection below is not empty by mistake."""
    assert ROOT / "README.md" in programs()
    assert len(programs()) > 3


@pytest.mark.parametrize("page", programs(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_is_one_program_that_runs(page: Path, tmp_path: Path, database: str):
    """All Python blocks of a page, from top to bottom, as they stand."""
    source = "\n".join(FENCE.findall(page.read_text(encoding="utf-8")))
    result = run(source, tmp_path, database)
    assert result.returncode == 0, result.stderr


def test_the_first_example_prints_a_committed_event(tmp_path: Path, database: str):
    """README's first block, alone: the event has the key that the flush gave the order."""
    first = FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))[0]
    result = run(first, tmp_path, database)
    assert result.stdout.startswith("Event('order.placed', topic='orders', key='1', seq=None")


def test_links_lead_somewhere():
    """Every relative link in the README and the docs has a target."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_examples_run(example: Path, tmp_path: Path, database: str):
    """Each program in examples/ ends well."""
    result = run(example.read_text(encoding="utf-8"), tmp_path, database)
    assert result.returncode == 0, result.stderr
