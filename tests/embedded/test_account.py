"""As root: PostgreSQL runs as somebody else, who may not reach what root reaches."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from projector.embedded import Postgres, Search
from projector.embedded.account import server_account
from projector.embedded.binaries import POSTGRES_WHEEL

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become another user")


def test_postgres_runs_as_an_unprivileged_user():
    """Its files belong to that user."""
    account = server_account()
    assert account
    assert account.uid != 0
    with Postgres() as server:
        assert (server.folder / "data" / "postmaster.pid").stat().st_uid == account.uid


def test_an_unreadable_installation_is_copied(tmp_path):
    """An installation that only root can reach runs from a copy, and is itself left alone."""
    site = tmp_path / "closed"
    _copy_of_the_wheel(site)
    site.chmod(0o700)
    before = _modes(site)
    with Postgres(version=16, search=Search(wheels=(site,))) as server:
        assert server.execute("SELECT 1") == [(1,)]
        assert (server.folder / "installation" / POSTGRES_WHEEL).is_dir()
    assert _modes(site) == before


def test_an_unreachable_temporary_folder_is_avoided(tmp_path, monkeypatch):
    """With TMPDIR below a closed folder, the server lives elsewhere and nothing stays there."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Postgres() as server:
        assert tmp_path not in server.folder.parents
    assert not list(tmp_path.iterdir())


def _copy_of_the_wheel(site: Path) -> None:
    """Of one version, to save time."""
    for root in Search.everywhere().wheels:
        for part in (f"{POSTGRES_WHEEL}/pginstall", f"{POSTGRES_WHEEL}.libs"):
            if (root / part).is_dir():
                shutil.copytree(root / part, site / part)


def _modes(site: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mode, path.stat().st_uid) for path in (site, *site.rglob("*"))}
