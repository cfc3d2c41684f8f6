"""Who works on which lane. Leases save work; the compare at each publish keeps it right."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from projector import keys
from projector.cluster import AnyRedis
from projector.sink import script


def new_token() -> str:
    """Tells people who holds a lease: host and process, and a word that makes it one of a kind."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Leases:
    """The leases of one projector."""

    redis: AnyRedis
    name: str
    length: timedelta
    token: str = field(default_factory=new_token)

    async def hold(self, lane: int) -> str | None:
        """Take or renew a lane. Its stored state if it is ours now, else None."""
        touched = [keys.lease(self.name, lane), keys.position(self.name, lane)]
        holder, state = await self._run("hold", touched, self._milliseconds)
        return script.text(state) if script.text(holder) == self.token else None

    async def release(self, lane: int) -> None:
        await self._run("release", [keys.lease(self.name, lane)])

    async def join(self) -> int:
        """Say that this projector lives. How many do."""
        return int(await self._run("join", [keys.members(self.name)], self._milliseconds))

    async def leave(self) -> None:
        await self._run("join", [keys.members(self.name)], 0)

    @property
    def _milliseconds(self) -> int:
        return int(self.length / timedelta(milliseconds=1))

    async def _run(self, name: str, touched: list[str], *arguments: Any) -> Any:
        return await script.run(self.redis, name, touched, [self.token, *arguments])


def fair_share(lanes: int, members: int) -> int:
    """How many lanes one of `members` projectors may hold; rounded up, so that none is left."""
    return -(-lanes // max(members, 1))
