"""Hands pending entries of consumers that are dead to others of their group that live."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from redis.exceptions import RedisError

from outbox import layout
from projector.cluster import AnyRedis
from projector.janitor.look import StreamLook, milliseconds
from projector.janitor.loss import Losses
from projector.sink import script
from projector.telemetry import Telemetry
from projector.topology import PLAIN, Topology

log = logging.getLogger("projector.janitor")

PAGES = 100
"""Pages of 100 entries for one group, before others have their turn."""
BY_IDLE_TIME = -1


@dataclass(frozen=True, slots=True)
class Recovery:
    """Our own consumers say that they live, and re-read their pending lists. Groups of other
    clients are looked after if their topic says `recover`; whoever is silent for `idle` there is
    taken for dead. Nothing is ever dead-lettered here, and ordered lanes recover by themselves."""

    redis: AnyRedis
    name: str
    losses: Losses
    telemetry: Telemetry
    topology: Topology
    idle: timedelta

    async def recover(self, lane: int, streams: Sequence[StreamLook]) -> int:
        """How many entries were handed over."""
        living: dict[str, Sequence[str] | None] = {}
        handed = 0
        for stream in streams:
            asked_for = self.topology.get(stream.topic, PLAIN).recover
            for group, look in stream.groups.items():
                if look.state.oldest_pending is None:
                    continue
                if group not in living:
                    living[group] = await self._living(group)
                members = living[group]
                if members is not None and (members or group in asked_for):
                    handed += await self._group(lane, stream, group, members)
        return handed

    async def _living(self, group: str) -> Sequence[str] | None:
        """The consumers of ours that live; None if that is not known, and so nobody is dead."""
        try:
            found = await script.run(self.redis, "members", [layout.members(self.name, group)], [])
        except RedisError:
            return None
        return [script.text(token) for token in found]

    async def _group(
        self, lane: int, stream: StreamLook, group: str, members: Sequence[str]
    ) -> int:
        begin, handed = "-", 0
        for _ in range(PAGES):
            answer = await script.run(
                self.redis,
                "recover",
                [stream.key, layout.lease(self.name, lane, group)],
                [
                    *(group, milliseconds(self.idle), begin, layout.LANE_CONSUMER),
                    *(len(members) or BY_IDLE_TIME, *members),
                ],
            )
            begin, heir = map(script.text, answer[:2])
            await self.losses.gone(lane, stream.topic, group, map(script.text, answer[2]))
            entries = list(zip(answer[3::3], answer[4::3], answer[5::3], strict=True))
            for entry, idle, owner in entries:
                log.warning(
                    "a pending entry was handed over: its consumer is gone",
                    extra={
                        **{"lane": lane, "topic": stream.topic, "group": group},
                        **{"entry": script.text(entry), "idle_seconds": int(idle) / 1000},
                        **{"from": script.text(owner), "to": heir},
                    },
                )
            handed += len(entries)
            self.telemetry.handed_over(lane, stream.topic, len(entries))
            if not begin:
                break
        return handed
