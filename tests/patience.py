"""How long tests wait for what must come: long, since the machine may be busy, and in time that this process could use."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 120.0
HELD_UP_S = 1.0  # a longer gap between two looks means that something else had the processor


class Patience:
    """Runs out after `limit_s`, where a gap in which this process was held up counts as a second."""

    def __init__(self, limit_s: float = PATIENCE_S) -> None:
        self._left_s = limit_s
        self._looked_s = time.monotonic()

    def left(self) -> bool:
        """Whether it is worth to look again."""
        now_s = time.monotonic()
        self._left_s -= min(now_s - self._looked_s, HELD_UP_S)
        self._looked_s = now_s
        return self._left_s > 0


def wait_until(predicate: Callable[[], object], what: str = "it did not happen") -> None:
    """Let time pass until this is true."""
    patience = Patience()
    while not predicate():
        assert patience.left(), what
        time.sleep(0.01)
