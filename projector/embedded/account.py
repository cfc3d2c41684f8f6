"""The unprivileged user that PostgreSQL runs as when we are root, which it refuses to be."""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from projector.embedded.errors import EmbeddedError

NAME = "nobody"


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int

    def arguments(self) -> dict[str, Any]:
        """For subprocess, which then gives up every right of root."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_run(self, *command: str | Path) -> bool:
        """Found by trying: mode bits alone know nothing of ACLs, mounts and security modules."""
        try:
            done = subprocess.run(  # noqa: S603 programs of the installation in use
                command, capture_output=True, check=False, cwd="/", timeout=30, **self.arguments()
            )
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0

    def own(self, path: Path) -> None:
        """Hands over a file or a whole folder; only ever one that we made."""
        os.chown(path, self.uid, self.gid)
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                os.chown(Path(folder, name), self.uid, self.gid, follow_symlinks=False)


def server_account() -> Account | None:
    """None when we are not root: then servers run as ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        user = pwd.getpwnam(NAME)
    except KeyError as exc:
        raise EmbeddedError(
            f"PostgreSQL refuses to run as root and there is no user {NAME!r} to run it as: "
            "run this as an ordinary user"
        ) from exc
    return Account(NAME, user.pw_uid, user.pw_gid)
