"""The judge of all stress tests sees every kind of difference."""

from __future__ import annotations

import pytest

from stress.audit import Event, audit

ONE, TWO, THREE = (Event("t", "k", seq, f"id-{seq}") for seq in (1, 2, 3))
OTHER = Event("t", "k", 2, "another")


def kinds(*published: Event) -> dict[str, list[Event]]:
    found = audit([ONE, TWO, THREE], published)
    every = {kind: list(getattr(found, kind)) for kind in KINDS}
    return {kind: events for kind, events in every.items() if events}


KINDS = ("lost", "doubled", "strange", "reordered")


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ([ONE, TWO, THREE], {}),
        ([ONE, THREE], {"lost": [TWO]}),
        ([ONE, TWO, TWO, THREE], {"doubled": [TWO]}),
        ([ONE, TWO, THREE, ONE], {"doubled": [ONE]}),
        ([ONE, THREE, TWO], {"reordered": [TWO]}),
        ([ONE, OTHER, TWO, THREE], {"strange": [OTHER]}),
        ([ONE, OTHER, THREE], {"lost": [TWO], "strange": [OTHER]}),
    ],
)
def test_differences_are_told_apart(published, expected):
    """Lost, doubled, strange and reordered, each by name."""
    assert kinds(*published) == expected


def test_another_key_or_topic_has_an_order_of_its_own():
    """Order is promised per topic and key only."""
    mixed = [Event("t", "a", 2, "1"), Event("t", "b", 1, "2"), Event("u", "a", 1, "3")]
    assert audit(mixed, mixed).clean


def test_a_database_that_lost_commits_may_repeat_but_not_lose():
    """Repetitions and what it lost are forgiven; a hole, or a wrong order, is not."""
    again = [ONE, OTHER, ONE, TWO, THREE]
    assert audit([ONE, TWO, THREE], again).forgiving().clean
    assert not audit([ONE, TWO, THREE], again[:-1]).forgiving().clean
    assert not audit([ONE, TWO, THREE], [ONE, THREE, ONE, TWO]).forgiving().clean


def test_the_report_names_what_is_missing():
    """Kind, number, and the first few by topic, key and number."""
    events = [Event("t", "k", seq, str(seq)) for seq in range(1, 21)]
    assert "20 lost: t k 1, t k 2" in str(audit(events, []))
    assert "and 12 more" in str(audit(events, []))
