"""`projector demo`: a running pipeline on embedded servers."""

from __future__ import annotations

import asyncio

import typer


def demo() -> None:
    """Watch a small shop's events reach their streams, on real servers from wheels."""
    from projector.demo import main

    raise typer.Exit(asyncio.run(main()))
