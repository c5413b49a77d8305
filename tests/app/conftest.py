"""Tests of screens: a key is pressed, a pause is over, once every message is handled.

Textual's own pilot goes by the processor time of the process, which says nothing on a busy machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
from textual.app import ScreenStackError
from textual.pilot import Pilot

from tests.patience import PATIENCE_S

QUIET, ROUNDS = 2, 40  # rounds without a waiting message; rounds at most, for a screen that never rests
HOPS = 8  # of the event loop: a message on its way between two widgets
told = Pilot._wait_for_screen


async def handled(pilot: Pilot[int], timeout: float = PATIENCE_S) -> bool:
    """Wait until no widget has a message left, nor what came of it."""
    quiet, well = 0, True
    for _ in range(ROUNDS):
        well = await told(pilot, PATIENCE_S)
        for _ in range(HOPS):
            await asyncio.sleep(0)
        busy = not well or pilot.app.typed.busy
        with suppress(ScreenStackError):
            nodes = [pilot.app, *pilot.app.screen.walk_children(with_self=True)]
            busy = busy or any(node.message_queue_size for node in nodes)
        quiet = 0 if busy else quiet + 1
        if quiet == QUIET or not pilot.app.is_running:
            break
    return well


async def press(pilot: Pilot[int], *keys: str) -> None:
    """One key after the other."""
    for key in keys:
        await pilot.app._press_keys([key])
        await handled(pilot)


async def at_once(*_: float) -> None:
    """In place of a look at the processor time."""
    await asyncio.sleep(0)


@pytest.fixture(scope="session", autouse=True)
def every_message_is_handled() -> Iterator[None]:
    """See above."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pilot, "_wait_for_screen", handled)
        patch.setattr(Pilot, "press", press)
        patch.setattr("textual.app.wait_for_idle", at_once)
        patch.setattr("textual.pilot.wait_for_idle", at_once)
        yield
