"""Event ids."""

from __future__ import annotations

import os
import time
from uuid import UUID

_VERSION_7 = 0x7 << 76
_VARIANT = 0x2 << 62


def new_id() -> UUID:
    """A UUIDv7: it sorts roughly by time, which keeps indexes compact. It is no order."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10))
    high = random >> 68  # 12 bits
    low = random & ((1 << 62) - 1)
    return UUID(
        int=(milliseconds & 0xFFFFFFFFFFFF) << 80 | _VERSION_7 | high << 64 | _VARIANT | low
    )
