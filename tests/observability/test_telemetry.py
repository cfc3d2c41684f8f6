"""Metrics and health of a projector, by a clock that the test turns."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from projector.health import Problem
from projector.telemetry import Telemetry


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def telemetry(clock: Clock) -> Telemetry:
    """Of a projector that has started and holds two lanes."""
    made = Telemetry(clock=clock, patience=30)
    made.holds({0, 1})
    return made


def samples(telemetry: Telemetry) -> dict[tuple[str, ...], float]:
    """Value by name and labels, in the order of their names; without when they were created."""
    families = text_string_to_metric_families(telemetry.render().decode())
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_every_name_and_label_follows_the_rules(telemetry):
    """One prefix, base units, and no label that grows with keys or ids."""
    telemetry.published(0, "orders", 5, 0.01)
    telemetry.detached(0, "orders", "full", "1000000")
    telemetry.outage("redis_away")
    telemetry.stranger("{shop:0}:orders")
    telemetry.problem(1, "restored")
    for family in text_string_to_metric_families(telemetry.render().decode()):
        assert family.name.startswith("projector_")
        for sample in family.samples:
            assert set(sample.labels) <= {"lane", "topic", "reason", "le"}


def test_published_events_are_counted(telemetry):
    """By lane and topic; the time by topic."""
    telemetry.published(0, "orders", 5, 0.01)
    telemetry.published(1, "orders", 2, 0.01)
    found = samples(telemetry)
    assert found["projector_events_published_total", "0", "orders"] == 5
    assert found["projector_events_published_total", "1", "orders"] == 2
    assert found["projector_publish_seconds_count", "orders"] == 2
    assert found["projector_publish_seconds_sum", "orders"] == pytest.approx(0.02)


def test_two_projectors_share_nothing(telemetry):
    """Each has a registry of its own."""
    telemetry.moved(0)
    assert samples(telemetry)["projector_positions_moved_total", "0"] == 1
    assert ("projector_positions_moved_total", "0") not in samples(Telemetry())


def test_strangers_are_counted_by_lane_and_topic(telemetry):
    """Whatever the outbox is called; other keys are none of ours."""
    telemetry.stranger("{a:b:7}:orders.new")
    telemetry.stranger("something else")
    assert samples(telemetry)["projector_stranger_writes_total", "7", "orders.new"] == 1


def test_the_loop_is_alive_while_it_turns(telemetry, clock):
    """And dead once it has not turned for longer than the patience."""
    telemetry.looked()
    clock.now += 30
    assert telemetry.health().alive
    assert not telemetry.health(clock.now + 0.1).alive
    assert samples(telemetry)["projector_look_age_seconds",] == 30
    telemetry.looked()
    assert telemetry.health(clock.now + 1).ready


def test_a_dead_loop_is_not_ready_and_says_why(telemetry, clock):
    """Also if nothing else is wrong."""
    clock.now += 31
    health = telemetry.health()
    assert not health.ready
    assert health.problems == [Problem("stalled", "the loop has not turned for 31 s", 100.0)]


def test_before_it_asked_for_lanes_it_is_alive_but_not_ready(clock):
    """Nobody knows yet whether they move."""
    telemetry = Telemetry(clock=clock)
    health = telemetry.health()
    assert (health.alive, health.ready) == (True, False)
    assert [problem.reason for problem in health.problems] == ["starting"]
    telemetry.holds(())
    assert telemetry.health().ready  # others may hold them all


def test_an_outage_is_no_reason_to_restart(telemetry, clock):
    """Trying again keeps it alive for as long as it takes; it is only not ready."""
    assert telemetry.outage("redis_away", "refused")
    for _ in range(10):
        clock.now += 20
        assert not telemetry.outage("redis_away", "refused")
    health = telemetry.health()
    assert (health.alive, health.ready) == (True, False)
    assert health.problems == [Problem("redis_away", "refused", 100.0)]
    assert samples(telemetry)["projector_outages_total", "redis_away"] == 1
    telemetry.recovered()
    assert telemetry.health().ready
    assert ("projector_outage", "redis_away") not in samples(telemetry)


def test_an_outage_that_changes_its_face_is_one_outage(telemetry, clock):
    """Away, then loading: another reason, the same beginning."""
    telemetry.outage("redis_away")
    clock.now += 5
    assert telemetry.outage("redis_loading")
    assert telemetry.health().problems == [Problem("redis_loading", "", 100.0)]
    found = samples(telemetry)
    assert found["projector_outage", "redis_loading"] == 1
    assert ("projector_outage", "redis_away") not in found


def test_a_detached_topic_is_named_until_it_rejoins(telemetry, clock):
    """It is found blocked at every turn, but counted once."""
    assert telemetry.detached(0, "orders", "full", "100")
    clock.now += 5
    assert not telemetry.detached(0, "orders", "full", "101")
    assert telemetry.health().problems == [Problem("full", "101", 100.0, 0, "orders")]
    key = ("0", "full", "orders")
    assert samples(telemetry)["projector_topic_detached", *key] == 1
    assert samples(telemetry)["projector_topic_detachments_total", *key] == 1
    telemetry.rejoined(0, "orders")
    telemetry.rejoined(0, "orders")
    assert telemetry.health().ready
    assert ("projector_topic_detached", *key) not in samples(telemetry)


def test_a_topic_detached_for_another_reason_shows_the_new_one(telemetry, clock):
    """Since it was first detached."""
    telemetry.detached(0, "orders", "full", "100")
    clock.now += 5
    assert telemetry.detached(0, "orders", "type", "hash")
    assert telemetry.health().problems == [Problem("type", "hash", 100.0, 0, "orders")]
    assert ("projector_topic_detached", "0", "full", "orders") not in samples(telemetry)


def test_a_lane_that_stopped_is_named_until_it_is_fine(telemetry):
    """Other lanes and topics keep their own problems."""
    assert telemetry.problem(0, "restored")
    assert not telemetry.problem(0, "restored")
    telemetry.detached(0, "orders", "full")
    assert [(p.topic, p.reason) for p in telemetry.health().problems] == [
        (None, "stopped"),
        ("orders", "full"),
    ]
    telemetry.fine(0)
    assert [problem.topic for problem in telemetry.health().problems] == ["orders"]


def test_the_problems_of_a_lane_leave_with_it(telemetry):
    """Who holds the lane now tells of them."""
    telemetry.detached(0, "orders", "full")
    telemetry.problem(0, "restored")
    telemetry.problem(1, "restored")
    telemetry.holds({1})
    assert [problem.lane for problem in telemetry.health().problems] == [1]
    found = samples(telemetry)
    assert ("projector_lane_held", "0") not in found
    assert found["projector_lane_held", "1"] == 1
    assert ("projector_lane_stopped", "0") not in found


def test_readiness_is_a_metric_too(telemetry):
    """So that an alert can do without a probe."""
    assert samples(telemetry)["projector_ready",] == 1
    telemetry.problem(0, "restored")
    assert samples(telemetry)["projector_ready",] == 0


def test_a_lane_that_waits_by_itself_is_told(telemetry, clock):
    """Once for each reason, since the first; other lanes show nothing of it."""
    assert telemetry.waits(1, "redis_away", "refused")
    clock.now += 5
    assert not telemetry.waits(1, "redis_away", "timed out")
    assert telemetry.waits(1, "redis_denied", "no right")
    assert telemetry.health().problems == [Problem("redis_denied", "no right", 100.0, 1)]
    found = samples(telemetry)
    assert found["projector_lane_waiting", "1", "redis_denied"] == 1
    assert ("projector_lane_waiting", "1", "redis_away") not in found
    assert found["projector_lane_setbacks_total", "1", "redis_away"] == 1
    telemetry.resumes(1)
    assert telemetry.health().ready
    assert ("projector_lane_waiting", "1", "redis_denied") not in samples(telemetry)


def test_a_lane_that_stops_while_it_waits_has_stopped(telemetry):
    """Its server is back, and what it holds cannot be published from."""
    telemetry.waits(1, "redis_away", "refused")
    telemetry.problem(1, "restored")
    telemetry.resumes(1)
    assert [problem.reason for problem in telemetry.health().problems] == ["stopped"]
    telemetry.fine(1)
    assert telemetry.health().ready
    assert not [name for name in samples(telemetry) if name[0].startswith("projector_lane_w")]
