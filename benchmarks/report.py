"""The result of a run as text for the documentation, and as data."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from benchmarks.tables import PAYLOAD
from benchmarks.timing import Spread, Subject, times_as_long

PACKAGES = ("sqlalchemy", "asyncpg", "faststream-outbox")


@dataclass(frozen=True)
class Target:
    """The subject should take at most `limit` times as long as the other."""

    subject: str
    other: str
    limit: float


TARGETS = (
    Target("c", "b", 1.1),
    Target("c", "f", 1.0),
    Target("c0", "f0", 1.0),
    Target("d", "c", 1.5),
    Target("e1", "d", 1.5),
    Target("e5", "d", 1.5),
    Target("c8", "b8", 1.1),
    Target("c8", "f8", 1.0),
)


@dataclass(frozen=True)
class Report:
    """What one run found."""

    postgres: str
    fsync: str
    subjects: Mapping[str, Subject]
    statements: Mapping[str, int]

    def text(self) -> str:
        return "\n".join(self._lines())

    def data(self) -> dict[str, Any]:
        return {
            "environment": self._environment(),
            "transactions_per_second": {n: asdict(s.rate) for n, s in self.subjects.items()},
            "statements": dict(self.statements),
            "targets": [
                {**asdict(target), "measured": asdict(ratio), "met": met}
                for target, ratio, met in self._verdicts()
            ],
        }

    def _lines(self) -> Iterator[str]:
        yield ", ".join(f"{name} {value}" for name, value in self._environment().items())
        yield (
            f"{len(self.subjects['a'].rates)} rounds; medians; ± is half the distance of the "
            "quartiles; 'adds' is the time beyond a"
        )
        yield ""
        head = f"{'one transaction after another':38}{'tx/s':>8}{'±':>6}{'µs/tx':>8}"
        yield f"{head}{'adds':>7}{'× a':>7}{'statements':>12}"
        one = [s for s in self.subjects.values() if s.workers == 1]
        yield from (self._line(subject, "a") for subject in one if subject.name != "g")
        yield ""
        many = [s for s in self.subjects.values() if s.workers > 1]
        yield f"{many[0].workers} at a time, in one process"
        yield from (self._line(subject, many[0].name) for subject in many)
        yield ""
        yield from self._thousand()
        yield ""
        yield f"{'target':38}{'measured':>8}   quartiles"
        yield from self._targets()

    def _line(self, subject: Subject, basis: str) -> str:
        rate, first = subject.rate, self.subjects[basis]
        half = 50 * (rate.high - rate.low) / rate.median
        ratio = times_as_long(subject, first).median
        adds = (ratio - 1) * first.microseconds  # by the ratio, which noise distorts least
        statements = self.statements.get(subject.name) or ""  # of the bare driver none is seen
        return (
            f"{subject.name:4}{subject.label:34}{rate.median:8,.0f}{half:5.0f}%"
            f"{subject.microseconds:8,.0f}{adds:+7,.0f}{ratio:7.2f}{statements:>12}".rstrip()
        )

    def _thousand(self) -> Iterator[str]:
        subject = self.subjects["g"]
        yield (
            f"1,000 events in one transaction: {1000 * subject.rate.median:,.0f} events/s, "
            f"{self.statements['g']} statement(s), {subject.microseconds / 1000:.1f} µs an event"
        )

    def _targets(self) -> Iterator[str]:
        for target, ratio, met in self._verdicts():
            claim = f"{target.subject} takes no more than {target.limit} × {target.other}"
            quartiles = f"{ratio.low:.3f} to {ratio.high:.3f}"
            verdict = "PASS" if met else "MISS"
            yield f"{claim:38}{ratio.median:8.3f}   {quartiles:18}{verdict}"

    def _verdicts(self) -> Iterator[tuple[Target, Spread, bool]]:
        for target in TARGETS:
            ratio = times_as_long(self.subjects[target.subject], self.subjects[target.other])
            yield target, ratio, ratio.median <= target.limit

    def _environment(self) -> dict[str, str | int]:
        return {
            "PostgreSQL": self.postgres,
            "fsync": self.fsync,
            "Python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
            "CPUs": os.cpu_count() or 1,
            "bytes of data": len(PAYLOAD),
        }
