"""A measured value beside its target."""

from __future__ import annotations


def verdict(
    label: str, measured: float, limit: float, unit: str = "", *, least: bool = False
) -> str:
    """A line of a table. `least`: the limit is a lower one."""
    met = measured >= limit if least else measured <= limit
    target = f"{'at least' if least else 'at most'} {limit:g}{unit}"
    return f"{label:44}{measured:10.2f}{unit:4}{target:>18}   {'PASS' if met else 'MISS'}"
