"""Temporary folders that a server's account can reach."""

import shutil
import tempfile
from pathlib import Path

from projector.embedded.account import Account
from projector.embedded.errors import EmbeddedError


def make_folder(name: str, account: Account | None) -> Path:
    """A new folder that only the server's account (or we) can look into. With another account
    the usual place may lie below a closed folder, such as the home of root."""
    if account is None:
        return Path(tempfile.mkdtemp(prefix=f"oncebox-{name}-"))
    places = dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp"))  # noqa: S108 mkdtemp in it
    for place in filter(Path.is_dir, map(Path, places)):
        folder = Path(tempfile.mkdtemp(prefix=f"oncebox-{name}-", dir=place))
        account.own(folder)
        if account.can_run("/bin/sh", "-c", 'test -w "$0"', folder):
            return folder
        shutil.rmtree(folder)
    raise EmbeddedError(
        f"user {account.name!r} can write to no folder below {', '.join(places)}: "
        "set TMPDIR to a folder that every user can reach"
    )
