"""An installation of PostgreSQL: where its programs are and who can run them."""

import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from projector.embedded.account import Account
from projector.embedded.errors import EmbeddedError

PROGRAMS = ("postgres", "initdb")


@dataclass(frozen=True)
class Installation:
    """`parts` are the folders below `root` that find each other by their relative places, so
    that together they can be copied; none when the installation is not ours to copy."""

    version: int
    programs: Path
    root: Path
    parts: tuple[Path, ...] = ()

    def usable_by(self, account: Account | None, folder: Path) -> "Installation":
        """This one, or a copy in `folder` when the account cannot run this one."""
        if account is None or self._runs_as(account):
            return self
        if self.parts:
            copy = self._copy_to(folder / "installation", account)
            if copy._runs_as(account):
                return copy
        raise EmbeddedError(
            f"user {account.name!r}, which stands in for root, cannot run PostgreSQL from "
            f"{self.programs}: run this as an ordinary user or install it where all can read it"
        )

    def _runs_as(self, account: Account) -> bool:
        return all(account.can_run(self.programs / name, "--version") for name in PROGRAMS)

    def _copy_to(self, root: Path, account: Account) -> "Installation":
        unneeded = shutil.ignore_patterns("include", "*.a")
        for part in self.parts:
            shutil.copytree(self.root / part, root / part, symlinks=True, ignore=unneeded)
        account.own(root)
        return replace(self, root=root, programs=root / self.programs.relative_to(self.root))


def version_of(programs: Path) -> int | None:
    """The major version, by asking; None when there is nothing to ask."""
    if not all(shutil.which(name, path=str(programs)) for name in PROGRAMS):
        return None
    try:
        said = subprocess.check_output(  # noqa: S603 a program found on the PATH or in a wheel
            [programs / "postgres", "--version"], text=True, timeout=30, cwd="/"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    number = re.search(r"\d+", said)
    return int(number[0]) if number else None
