"""What writing an event costs: `python -m benchmarks.write [--seconds N] [--json FILE]`.

Every subject gets a slice of every round, so that noise hits them alike; read the ratios, which
compare round by round, and not the rates, which are those of one machine on one day.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.database import WORKERS, Database, database
from benchmarks.listeners import without_listeners
from benchmarks.report import Report
from benchmarks.tables import make_outbox
from benchmarks.timing import Subject, Work, measure
from benchmarks.transactions import Driver, Ours, Plain

EVENTS = {"c": 1, "c*": 1, "c0": 1, "d": 5, "e1": 5, "e5": 5, "g": 1000, "c8": 1}
"""How many events a transaction of each subject writes."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    result = asyncio.run(run(options.seconds, options.database_url, options.fsync))
    print(result.text())
    if options.json is not None:
        options.json.write_text(json.dumps(result.data(), indent=2) + "\n")


async def run(seconds: float, url: str | None, fsync: str) -> Report:
    events = make_outbox()
    async with database(url, fsync) as measured:
        subjects = _subjects(
            Plain(measured.plain), Ours(measured.ours, events), Driver(measured.driver)
        )
        await measure(subjects, seconds)
        result = Report(
            measured.version,
            measured.fsync,
            {subject.name: subject for subject in subjects},
            {s.name: await _statements(measured, s) for s in subjects if s.workers == 1},
        )
        await _check_written(measured, subjects)
    return result


def _subjects(plain: Plain, ours: Ours, driver: Driver) -> list[Subject]:
    def rival(name: str, label: str, work: Work, workers: int = 1) -> Subject:
        return Subject(name, label, work, workers, without_listeners)

    return [
        rival("a", "one business row", plain.business_row),
        Subject("a*", "  the same, an outbox exists", ours.business_row),
        rival("b", "business row + plain ORM row", plain.two_rows),
        Subject("c", "business row + 1 event", ours.row_and_event),
        Subject("c*", "  the same, the row is the key", ours.row_as_key),
        Subject("d", "business row + 5 events", ours.row_and_five),
        Subject("e1", "  the same, AUTO, one key", ours.row_and_five_numbered),
        Subject("e5", "  the same, AUTO, five keys", ours.row_and_five_keys_numbered),
        rival("f", "business row + faststream-outbox", plain.row_and_publish),
        Subject("c0", "1 event alone", ours.one_event),
        rival("f0", "faststream-outbox alone", plain.publish),
        rival("h", "the rows of b, asyncpg alone", driver.two_rows),
        Subject("g", "1,000 events", ours.thousand),
        rival("a8", "one business row", plain.business_row, WORKERS),
        rival("b8", "business row + plain ORM row", plain.two_rows, WORKERS),
        Subject("c8", "business row + 1 event", ours.row_and_event, WORKERS),
        rival("f8", "business row + faststream-outbox", plain.row_and_publish, WORKERS),
    ]


async def _statements(measured: Database, subject: Subject) -> int:
    with subject.surroundings():
        statements = await measured.statements(subject.work)
    subject.done += 1
    return statements


async def _check_written(measured: Database, subjects: Sequence[Subject]) -> None:
    """A fast subject that wrote nothing would look best of all."""
    done = {subject.name: subject.done for subject in subjects}
    wanted = {
        "outbox": sum(done[name] * events for name, events in EVENTS.items()),
        "plain_row": done["b"] + done["b8"] + done["h"],
        "peer_outbox": done["f"] + done["f0"] + done["f8"],
    }
    found = {table: await measured.rows(table) for table in wanted}
    if found != wanted:
        raise RuntimeError(f"rows are missing: wanted {wanted}, found {found}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("benchmarks.write", description="What writing an event costs.")
    parser.add_argument("--seconds", type=float, default=45, help="to measure for, in all (45)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument(
        "--database-url",
        metavar="URL",
        help="a PostgreSQL to use instead of an embedded one; works in a schema of its own",
    )
    parser.add_argument(
        "--fsync", choices=("on", "off"), default="on", help="of the embedded server (on)"
    )
    return parser


if __name__ == "__main__":
    main()
