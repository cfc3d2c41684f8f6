"""`projector demo`: a running pipeline on embedded servers."""

from __future__ import annotations

import asyncio

import typer


def demo() -> None:
    """Watch orders become events and bills, while processes are killed; on real servers."""
    from projector.demo.stage import main

    raise typer.Exit(asyncio.run(main()))
