"""The demo that users see first."""

from __future__ import annotations

import re
import subprocess
import sys


def test_the_demo_ends_with_a_clean_audit():
    """Whatever was killed: every committed order was delivered and billed, once, in order."""
    result = subprocess.run(
        [sys.executable, "-m", "projector", "demo"], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    audit = result.stdout.splitlines()[-1]
    numbers = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", audit)}
    assert numbers["committed"] > 100
    assert numbers["committed"] == numbers["delivered"] == numbers["effects"]
    for wrong in ("lost", "duplicated", "out_of_order"):
        assert numbers[wrong] == 0
    for happened in ("killed a projector", "killed a consumer", "cannot be billed", "repaired"):
        assert happened in result.stdout
