"""How long the projector waits between two turns."""

from __future__ import annotations

from projector.pace import Pace


def test_a_steady_trickle_is_no_silence():
    """An event every 10 ms, looked for every millisecond: the waits stay short."""
    pace = Pace(busy=0.001, idle=0.025, linger=0.1)
    waits = [pace.wait(tick % 10 == 0, tick / 1000) for tick in range(1000)]
    assert set(waits) == {0.001}


def test_silence_backs_off_step_by_step_and_an_event_ends_it():
    """After the linger the waits double up to the idle one."""
    pace = Pace(busy=0.001, idle=0.025, linger=0.1)
    assert pace.wait(1, 10.0) == 0.001
    assert pace.wait(0, 10.09) == 0.001
    waits = [pace.wait(0, 10.2 + second) for second in range(6)]
    assert waits == [0.002, 0.004, 0.008, 0.016, 0.025, 0.025]
    assert pace.wait(1, 20.0) == 0.001


def test_a_projector_that_just_started_is_not_busy():
    """Nothing was published yet: the waits grow from the first."""
    pace = Pace(busy=0.001, idle=0.025, linger=0.1)
    assert [pace.wait(0, now) for now in (0.0, 0.001)] == [0.002, 0.004]
