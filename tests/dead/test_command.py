"""`projector dead`, `projector groups drop` and `projector status` as people call them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from sqlalchemy import create_engine, make_url
from typer.testing import CliRunner, Result

from outbox import Outbox, layout
from projector.cli import app
from projector.cli.chosen import age_of
from projector.dead.outcome import NoSuchLetter, NotEdited
from projector.errors import GroupHasLetters
from support.letters import Work
from support.waiting import until

Command = Callable[..., Awaitable[Result]]


@pytest.fixture
async def command(streams, database, redis_url) -> Command:
    """Runs `projector …` on the outbox of the streams."""
    outbox = Outbox(name=streams.name, lanes=streams.lanes)
    engine = create_engine(make_url(database).set(drivername="postgresql+psycopg"))
    outbox.metadata.create_all(engine)
    with engine.begin() as connection:
        outbox.meet(connection)
    engine.dispose()
    place = ["--database-url", database, "--redis-url", redis_url, "--name", streams.name]

    async def run(*words: str, stdin: str | None = None, **env: str) -> Result:
        arguments = [*words, *place]
        return await asyncio.to_thread(CliRunner().invoke, app, arguments, input=stdin, env=env)

    return run


@pytest.fixture
async def letters(streams, work) -> Work:
    """Keys a and b are parked, with one event behind the letter of a; c is fine."""
    await streams.add("a", 1, data="bad")
    await streams.add("b", 1, data="bad", topic="u", type="paid")
    await streams.add("a", 2)
    await streams.add("c", 1)
    await work.drain()
    return work


async def dump(streams) -> dict[bytes, bytes]:
    """Everything that Redis has of the outbox, but for what runs out by itself."""
    names = [key async for key in streams.redis.scan_iter(f"*{streams.name}*")]
    found = {key: await streams.redis.dump(key) for key in names}
    return {key: value for key, value in found.items() if b"@consumers" not in key}


def good(work: Work) -> None:
    """Nothing is bad from now on."""

    async def handle(event) -> None:
        work.seen.append((event.key, event.seq))

    work.handle = handle


async def test_a_list_for_people_has_a_line_each_and_counts(command, letters):
    """What waits is counted, and only shown when asked for."""
    result = await command("dead", "list", "--group", "billing")
    titles, *rows, footer = result.output.splitlines()
    assert titles.split()[:3] == ["EVENT", "LANE", "TOPIC"]
    assert [row.split()[2:5] for row in rows] in (
        [["t", "changed", "a"], ["u", "paid", "b"]],
        [["u", "paid", "b"], ["t", "changed", "a"]],
    )
    assert "PermanentError: no paid for b" in result.output
    assert footer == (
        "2 match; group 'billing' has 2 dead letters, 1 events wait behind them, 2 keys are parked"
    )
    result = await command("dead", "list", "--group", "billing", "--waiting", "--limit", "1")
    assert "… and 2 more" in result.output


async def test_a_list_for_machines_is_one_object_a_line(command, letters):
    result = await command(
        "dead", "list", "--group", "billing", "--json", "--key", "a", "--waiting"
    )
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["seq"], first["state"], first["attempts"]) == (1, "dead", 1)
    assert (second["seq"], second["state"]) == (2, "waiting")
    assert {"id", "lane", "topic", "type", "key", "cause", "since", "last"} <= first.keys()


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--key", "a"], ["a"]),
        (["--key", "a", "--key", "b"], ["a", "b"]),
        (["--type", "paid"], ["b"]),
        (["--topic", "t"], ["a"]),
        (["--error", "no paid"], ["b"]),
        (["--older-than", "1h"], []),
        (["--newer-than", "1.5h", "--topic", "u"], ["b"]),
    ],
)
async def test_options_choose_letters(command, letters, options, keys):
    result = await command("dead", "list", "--group", "billing", "--json", *options)
    assert sorted(json.loads(line)["key"] for line in result.stdout.splitlines()) == keys


async def test_another_group_has_no_letters(command, letters):
    result = await command("dead", "list", "--group", "mail")
    assert result.output.startswith("0 match; group 'mail' has 0 dead letters")


async def test_one_letter_is_shown_with_all_there_is(command, letters):
    event_id = (await letters.one(keys=("a",))).event_id
    shown = (await command("dead", "show", event_id, "--group", "billing")).output
    for text in ("PermanentError: no changed for a", "1 events wait", 'data:\n"bad"', "in handle"):
        assert text in shown
    result = await command("dead", "show", event_id, "--group", "billing", "--json")
    told = json.loads(result.stdout)
    assert (told["id"], told["data"], told["behind"]) == (event_id, "bad", 1)
    assert "Traceback" in told["traceback"]


async def test_a_letter_that_is_not_there_is_an_error_that_says_so(
    command, letters, streams, database, redis_url
):
    """On standard error, in one line, with exit code 1."""
    words = ["dead", "show", "nobody", "--group", "billing"]
    assert isinstance((await command(*words)).exception, NoSuchLetter)
    place = ["--database-url", database, "--redis-url", redis_url, "--name", streams.name]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "projector", *words, *place), stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().startswith("projector: group 'billing' has no dead letter 'nobody'")


@pytest.mark.parametrize("what", ["retry", "discard"])
async def test_a_dry_run_changes_nothing(command, letters, streams, what):
    before = await dump(streams)
    result = await command("dead", what, "--group", "billing", "--all", "--dry-run")
    assert f"would {what} 2 letters of 2 keys" in result.output
    assert "changed of t, key a" in result.output
    assert await dump(streams) == before


@pytest.mark.parametrize("what", ["retry", "discard"])
async def test_nobody_means_all_letters_by_accident(command, letters, streams, what):
    before = await dump(streams)
    result = await command("dead", what, "--group", "billing")
    assert (result.exit_code, "--all" in result.output) == (2, True)
    assert await dump(streams) == before


async def test_a_retry_says_what_it_has_marked(command, letters):
    """And that nobody is there to do it; then somebody is."""
    result = await command("dead", "retry", "--group", "billing", "--all")
    assert "marked 2 letters of 2 keys to be handled again\nno consumer" in result.output
    again = await command("dead", "retry", "--group", "billing", "--key", "a")
    assert "marked 1 letters of 1 keys to be handled again (1 already were)" in again.output
    good(letters)
    await letters.drain()
    assert letters.seqs("a") == [1, 2]
    assert letters.seqs("b") == [1]
    gone = await command("dead", "retry", "--group", "billing", "nobody")
    assert gone.output == "marked 0 letters of 0 keys to be handled again; 1 not found\n"


async def test_a_running_consumer_is_not_reported_missing(command, letters):
    consumer = letters.consumer()
    running = asyncio.create_task(consumer.run())
    await until(letters.letters.consumers)
    result = await command("dead", "retry", "--group", "billing", "--key", "a")
    consumer.stop()
    await running
    assert "no consumer" not in result.output


async def test_a_discard_says_what_goes_on(command, letters):
    result = await command("dead", "discard", "--group", "billing", "--key", "a")
    assert result.output == "discarded 1 letters; 1 keys go on without them\n"
    await letters.drain()
    assert letters.seqs("a") == [2]
    assert [letter.key for letter in await letters.find()] == ["b"]


async def test_all_letters_of_a_key_are_discarded_while_a_consumer_runs(command, streams, work):
    """From the last to the first, so that none of them gets its turn in between."""
    await streams.add("k", 1, data="bad")
    for seq in range(2, 40):
        await streams.add("k", seq)
    await work.drain()
    consumer = work.consumer()
    running = asyncio.create_task(consumer.run())
    result = await command("dead", "discard", "--group", "billing", "--key", "k", "--waiting")
    await streams.add("k", 40)

    async def handled() -> bool:
        return bool(work.seen)

    await until(handled)
    consumer.stop()
    await running
    assert result.output.startswith("discarded 39 letters")
    assert work.seen == [("k", 40)]


@pytest.mark.parametrize("how", ["--data", "--file", "stdin", "editor"])
async def test_an_edit_takes_data_from_wherever_it_is(command, letters, tmp_path, how):
    """A text, a file, standard input, or the user's editor; then the retry succeeds."""
    event_id = (await letters.one(keys=("a",))).event_id
    file = tmp_path / "new.json"
    file.write_text('"good"')
    words: dict[str, list[str]] = {
        "--data": ["--data", '"good"'],
        "--file": ["--file", str(file)],
        "stdin": ["--file", "-"],
        "editor": [],
    }
    result = await command(
        *("dead", "edit", event_id, "--group", "billing", *words[how]),
        stdin='"good"',
        EDITOR=editor(tmp_path, "text.replace('bad', 'good')"),
        VISUAL="",
    )
    assert result.output.startswith(f"edited letter {event_id}"), result.exception
    told = await command("dead", "show", event_id, "--group", "billing", "--json")
    shown = json.loads(told.stdout)
    assert (shown["data"], shown["original"]) == ("good", "bad")
    assert (await letters.letters.whole(event_id)).data == b'"good"'
    await command("dead", "retry", "--group", "billing", event_id)
    await letters.drain()
    assert letters.seqs("a") == [1, 2]


@pytest.mark.parametrize(
    ("change", "problem"),
    [("text", "nothing was changed"), ("'{broken'", "use --file"), ("1 / 0", "the editor failed")],
)
async def test_an_edit_that_came_to_nothing_changes_nothing(
    command, letters, streams, tmp_path, change, problem
):
    """And what was written in the editor is not lost."""
    event_id = (await letters.one(keys=("a",))).event_id
    before = await dump(streams)
    result = await command(
        *("dead", "edit", event_id, "--group", "billing"),
        EDITOR=editor(tmp_path, change),
        VISUAL="",
    )
    assert isinstance(result.exception, NotEdited)
    assert problem in str(result.exception)
    if "broken" in change:
        assert taken(str(result.exception).split("mend ")[1].split(" ")[0]) == "{broken"
    assert await dump(streams) == before


async def test_an_edit_can_be_tried(command, letters, streams):
    event_id = (await letters.one(keys=("a",))).event_id
    before = await dump(streams)
    words = ("dead", "edit", event_id, "--group", "billing", "--dry-run", "--data")
    assert "would replace 5 bytes with 6" in (await command(*words, '"good"')).output
    assert isinstance((await command(*words, "{broken")).exception, NotEdited)
    assert await dump(streams) == before


async def test_a_file_that_is_not_there_is_said(command, letters):
    event_id = (await letters.one(keys=("a",))).event_id
    words = ("dead", "edit", event_id, "--group", "billing", "--file", "/no/such/file")
    result = await command(*words)
    assert (result.exit_code, "cannot read /no/such/file" in result.output) == (2, True)


def taken(path: str) -> str:
    """What is in a file, which is removed."""
    text = Path(path).read_text()
    Path(path).unlink()
    return text


def editor(folder: Path, change: str) -> str:
    """A command that edits a file: `text` is what it shows."""
    program = folder / "editor.py"
    program.write_text(
        "import pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        f"text = path.read_text()\npath.write_text({change})\n"
    )
    return f"{sys.executable} {program}"


async def test_a_group_with_letters_is_not_dropped_unasked(command, letters, streams):
    """Then nothing of it is left."""
    before = await dump(streams)
    result = await command("groups", "drop", "billing")
    assert isinstance(result.exception, GroupHasLetters)
    assert "2 dead letters, and 1 events" in str(result.exception)
    assert await dump(streams) == before
    result = await command("groups", "drop", "billing", "--force")
    assert result.exit_code == 0
    left = [key.decode() for key in await dump(streams) if b"billing" in key]
    assert [key for key in left if "@inbox" not in key] == []


async def test_status_tells_of_letters_by_group(command, letters):
    """In text only if there are any; in JSON always."""
    streams = letters.streams
    quiet = Work(streams, "mail")
    good(quiet)
    await quiet.drain()
    for lane in range(streams.lanes):  # as a projector that has published would
        stream = layout.stream(streams.name, lane, "t")
        await streams.redis.hset(layout.tops(streams.name, lane), stream, "0-1")
    told = json.loads((await command("status", "--json")).stdout)
    mine, other = told["letters"]
    age = mine.pop("oldest_age_seconds")
    assert age >= 0
    assert mine == {"group": "billing", "dead": 2, "waiting": 1, "parked": 2}
    assert other == {
        **{"group": "mail", "dead": 0, "waiting": 0, "parked": 0},
        "oldest_age_seconds": None,
    }
    lines = [line.split() for line in (await command("status")).output.splitlines()]
    assert ["GROUP", "DEAD", "LETTERS", "WAITING", "BEHIND", "PARKED", "KEYS", "OLDEST"] in lines
    assert ["billing", "2", "1", "2"] in [line[:4] for line in lines]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("7d", 604_800)]
)
def test_ages(text, seconds):
    assert age_of(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "h", "1w", "-1", "1h30m", "9" * 30 + "d"])
def test_what_is_no_age_is_said(text):
    with pytest.raises(typer.BadParameter, match="is no age"):
        age_of(text)
