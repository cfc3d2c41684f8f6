"""A process that works on demand, with nothing but the standard library.

Says "ready". Reads lines `WHAT SECONDS`, does that work for so long, answers with the rate per
second.
"""

import sys
import time
from collections.abc import Callable, Mapping


def serve(works: Mapping[str, Callable[[], object]]) -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        what, seconds = line.split()
        work, done, began = works[what], 0, time.perf_counter()
        end = began + float(seconds)
        while time.perf_counter() < end:
            work()
            done += 1
        print(done / (time.perf_counter() - began), flush=True)
