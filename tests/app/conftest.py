"""Tests of screens: a key is pressed, a pause is over, once every message is handled.

Textual's own pilot goes by the processor time of the process, which says nothing on a busy machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from textual.pilot import Pilot

TURNS = 20_000  # of the event loop, at most: a screen may never rest
KEY_S = 0.005


async def handled(pilot: Pilot[int], timeout: float = 0.0) -> bool:
    """Wait until nothing is left to do but what waits for a time, for a file or for another thread."""
    loop = asyncio.get_running_loop()
    for _ in range(TURNS):
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]
            typed = getattr(pilot.app, "typed", None)  # other programs than ours have none
            if typed is None or not typed.busy:
                return True
            await asyncio.sleep(KEY_S)
    return False


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
