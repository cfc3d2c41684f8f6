"""The demo that users see first."""

from __future__ import annotations

import re
import subprocess
import sys


def test_the_demo_ends_with_a_clean_audit():
    """Orders were committed and rolled back; the streams hold the events of the former, once."""
    result = subprocess.run(
        [sys.executable, "-m", "projector", "demo"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    audit = result.stdout.splitlines()[-1]
    numbers = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", audit)}
    assert numbers["committed"] + numbers["rolled_back"] == 100
    assert numbers["events"] == 2 * numbers["committed"]
    assert numbers["delivered"] == numbers["events"]
    for wrong in ("lost", "duplicated", "out_of_order", "not_committed"):
        assert numbers[wrong] == 0
