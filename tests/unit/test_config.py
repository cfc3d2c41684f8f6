"""The configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.config import BadConfig, load
from projector.topology import Topic


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "projector.toml"


def test_a_file_gives_defaults_and_topics(file: Path) -> None:
    """What it leaves out is not among them."""
    file.write_text(
        'name = "shop"\nretention = 60\n'
        '[topics.orders]\ngroups = ["billing"]\nmaxlen = 5\n'
        '[topics."order.lines"]\non_full = "trim"\n'
    )
    config = load(file)
    assert config.options() == {"name": "shop", "retention": 60}
    assert config.topics == {
        "orders": Topic(groups=("billing",), maxlen=5),
        "order.lines": Topic(on_full="trim"),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = ", "Invalid value"),
        ('nmae = "shop"', "unknown field `nmae`"),
        ('batch = "many"', r"`\$\.batch`"),
        ("[topics.orders]\ngroup = []", "unknown field `group`"),
        ('[topics.orders]\ngroups = [""]', "must not be empty"),
        ("[topics.orders]\nmaxlen = -1", "count entries"),
        ('[topics.orders]\non_full = "drop"', "'drop'"),
        ('[topics.orders]\non_full = "trim"\nhigh_water = 0', "needs a high_water"),
        ('[topics."a b"]', "letters, digits"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(file: Path, text: str, problem: str) -> None:
    """With the file's path, and where in it."""
    file.write_text(text)
    with pytest.raises(BadConfig, match=problem) as raised:
        load(file)
    assert str(file) in str(raised.value)


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(BadConfig, match="No such file"):
        load(file)
