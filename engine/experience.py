"""What a load and its replies teach about this machine: the memory that the target really takes, so that the next estimate is no more
hopeful (`fit.expected`), and the speed-up of a drafter, by which `auto` picks. Kept by `engine.catalog.measured`. Needs torch."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from engine.catalog import measured
from engine.decoder.opened import Opened
from engine.protocol import Done, Memory
from engine.stats import Tally

REMEMBER_TOKENS = 48  # shorter replies say little about a drafter's speed


class Experience:
    """Made before the target is opened."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path, self._device = path, device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._begin, self._most = self._held(), 0

    def memory(self, opened: Opened, held: Memory) -> None:
        """After the load and after each reply: weights and work at the most so far. Libraries and what is no tensor are not counted."""
        taken = self._held() - self._begin - held.drafter - held.kv
        if taken > self._most:
            self._most = taken
            measured.remember_bytes(self._path, opened.scheme, opened.head_scheme, self._device.type, taken)

    def speed(self, target: str, opened: Opened, done: Done, tally: Tally) -> None:
        """After a reply: how much faster than plain it was."""
        if done.drafter != "none" and done.plain_s is not None and tally.emitted >= REMEMBER_TOKENS:
            measured.remember(target, done.drafter, opened.scheme, self._device.type, tally.tok_per_s * done.plain_s, tally.emitted)

    def _held(self) -> int:
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(self._device))
        if self._device.type == "mps":
            return int(torch.mps.driver_allocated_memory())
        return int(psutil.Process().memory_info().rss)
