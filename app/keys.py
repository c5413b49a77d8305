"""Keys and pastes take effect in the order in which they were typed, however busy the screen is.

Textual hands a key to the widget with the focus, which hands it up to where it is bound; and keys of the whole screen never pass the
widget. So of keys that come together the second may be done before the first: text typed behind Enter goes with the question. Here
the next one begins when everything that came of the one before is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from textual.app import App
from textual.events import Event

ROUNDS = 2  # the way of the key up to the program, and that of what it brought about
LOOK_S, LOOKS = 0.1, 30  # a widget that is stuck holds up keys for so long, in time in which the program runs at all


class InOrder:
    """`handle` begins what a key does. `run` is to be run beside the program for as long as it lasts."""

    def __init__(self, app: App[int], handle: Callable[[Event], Awaitable[None]]) -> None:
        self._app, self._handle = app, handle
        self._typed: asyncio.Queue[Event] = asyncio.Queue()
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether a key waits, or is not yet done."""
        return self._busy or not self._typed.empty()

    def put(self, event: Event) -> None:
        """The next key."""
        self._typed.put_nowait(event)

    async def run(self) -> None:
        """One after the other."""
        while True:
            event = await self._typed.get()
            self._busy = True
            try:
                await self._handle(event)
                done = asyncio.create_task(self._done())
                for _ in range(LOOKS):
                    if (await asyncio.wait({done}, timeout=LOOK_S))[0]:
                        break
                done.cancel()
            finally:
                self._busy = False

    async def _done(self) -> None:
        """Wait until the widget with the focus, and all that it is in, have done what they were told so far."""
        for _ in range(ROUNDS):
            for node in (self._app.focused or self._app.screen).ancestors_with_self:
                told = asyncio.Event()
                if node.call_later(told.set):
                    await told.wait()
