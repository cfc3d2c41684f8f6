"""`make stress SECONDS=60 [SEED=7] [ONLY=valkey_killed]`: every trouble in turn."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time

from projector.embedded import Postgres
from stress.scene import Outcome, Trouble, play
from stress.troubles import TROUBLES

SLICE = 6
"""Seconds that one trouble lasts."""


def main() -> None:
    options = _options()
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    chosen = [trouble for trouble in TROUBLES if options.only in ("", trouble.name)]
    if not chosen:
        sys.exit(f"no trouble is called {options.only}; there are: {_names()}")
    print(f"seed {seed}, {options.seconds:.0f} s", flush=True)
    sys.exit(asyncio.run(_rotate(chosen, options.seconds, seed)))


async def _rotate(chosen: list[Trouble], seconds: float, seed: int) -> int:
    """Each trouble has a slice of the time, and every round another seed. The exit status."""
    ends = time.monotonic() + seconds
    bad = events = number = 0
    with Postgres({"max_prepared_transactions": 20}) as shared:
        while number == 0 or time.monotonic() < ends:
            trouble = chosen[number % len(chosen)]
            turn_seed = seed + number // len(chosen)
            outcome = await play(trouble, shared, min(SLICE, seconds), turn_seed)
            print(_line(trouble, turn_seed, outcome), flush=True)
            bad += not outcome.good
            events += outcome.audit.committed
            number += 1
    print(f"{number} scenes, {events:,} events, {bad} of the scenes with differences")
    return 1 if bad else 0


def _line(trouble: Trouble, seed: int, outcome: Outcome) -> str:
    did = ", ".join(f"{count} {what}" for what, count in outcome.tally.items())
    rate = outcome.audit.committed / outcome.seconds
    verdict = "ok" if outcome.good else "DIFFERENT"
    counts = f"{outcome.audit.committed:>8,} events {rate:>6,.0f}/s"
    line = f"{trouble.name:22}{counts}  {verdict}  {did}"
    return line if outcome.good else f"{line}  (seed {seed})\n{outcome}"


def _names() -> str:
    return ", ".join(trouble.name for trouble in TROUBLES)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="of the first round; made up if not given")
    parser.add_argument("--only", default="", help="one trouble instead of all")
    return parser.parse_args()


if __name__ == "__main__":
    main()
