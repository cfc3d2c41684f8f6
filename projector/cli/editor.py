"""Data in the user's editor, as git does it with messages."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from outbox import codec
from projector.dead.letters import check
from projector.dead.outcome import NotEdited

if TYPE_CHECKING:
    from projector.dead.letter import Whole


def edited(whole: Whole) -> bytes:
    """What $VISUAL or $EDITOR makes of the data. JSON is shown indented, and comes back without.
    What cannot be accepted is kept in a file, and the error says where."""
    event_id, json = whole.letter.event_id, codec.is_json(whole.content_type)
    path = _written(_shown(whole), ".json" if json else ".txt")
    before = path.read_bytes()
    try:
        _run_editor(path)
    except (OSError, ValueError, subprocess.CalledProcessError) as exc:
        path.unlink()
        problem = f"the editor failed ({exc}); set EDITOR, or use --data or --file"
        raise NotEdited(event_id, problem) from exc
    after = path.read_bytes()
    if after == before:
        path.unlink()
        raise NotEdited(event_id, "nothing was changed")
    try:
        check(whole, after)
    except NotEdited as exc:
        raise NotEdited(event_id, f"{exc.problem}; mend {path} and use --file") from exc
    path.unlink()
    return msgspec.json.format(after, indent=-1) if json else after


def _run_editor(path: Path) -> None:
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    # The user's own command, with arguments, as git takes it.
    subprocess.run([*shlex.split(command), str(path)], check=True)  # noqa: S603


def _shown(whole: Whole) -> bytes:
    try:
        whole.data.decode()
    except UnicodeDecodeError as exc:
        raise NotEdited(whole.letter.event_id, "its data is no text; use --file") from exc
    if codec.is_json(whole.content_type):
        try:
            return msgspec.json.format(whole.data, indent=2) + b"\n"
        except msgspec.DecodeError:
            pass  # broken: as it is, to be mended
    return whole.data


def _written(data: bytes, suffix: str) -> Path:
    with tempfile.NamedTemporaryFile(prefix="letter-", suffix=suffix, delete=False) as file:
        file.write(data)
    return Path(file.name)
