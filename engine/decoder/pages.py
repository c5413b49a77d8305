"""Weights in large pages. What is mapped from a file lies in pages of 4 KB all over the memory, and reading a model once for each token
then takes a quarter of the time more than from pages of 2 MB (`docs/performance.md`).

`later` notes tensors, `move` carries them over piece by piece, each to where it was: addresses stay, so nobody who holds one hears of it.
A piece is copied into fresh large pages, and these are put in the place of the old ones in one call of the system (mremap), so a load
stays as quick as mapping is. Only the thread that noted tensors moves them, between the passes that read them; dropping them drops the
note. On other systems than Linux, without large pages, or with less memory left than `RESERVE`, everything stays where it is.
Only what a tensor owns in full moves: what lies beside it in its first and last large page belongs to somebody else.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import perf_counter
from weakref import WeakSet

from torch import Tensor

from engine.spare import available

LARGE = 2 << 20  # bytes of a large page, on every processor that torch has builds for with pages of 4 KB
PIECE = 2 * LARGE  # bytes that are moved at once: a few milliseconds
RESERVE = 1 << 30  # bytes of memory that must be left: large pages cannot be dropped and read again, as those of a file can
AT_ONCE_S = 0.02  # seconds of moving without a look at anything else
SHARE = 0.1  # of the time of a reply goes into moving
GAP = 64  # bytes between two tensors of one file that belong to nobody
MOST_PIECES = 8192  # of one model: each stays an area of its own to the system, and it counts them (vm.max_map_count, 65,530)
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")

_READ_WRITE, _PRIVATE_ANONYMOUS, _ADVISE_LARGE, _MOVE_TO = 3, 0x22, 14, 3


class _Noted(threading.local):
    """What each thread has noted."""

    def __init__(self) -> None:
        self.waiting: WeakSet[Pages] = WeakSet()


_noted = _Noted()


class Pages:
    """Tensors that wait to be moved. Whoever owns the tensors holds it; it ends with them."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self._held = tuple(t for t in tensors if t.is_contiguous())  # held: the memory must not be given back in the middle of a move
        ranges = _ranges(self._held)
        size = PIECE * (1 + sum(stop - start for start, stop in ranges) // (MOST_PIECES * PIECE))
        self._pieces = [piece for start, stop in ranges for piece in _split(start, stop, size)]
        self.left = sum(stop - start for start, stop in self._pieces)  # bytes that still lie in small pages

    def move(self) -> None:
        """Move one piece; none any more once something is against it."""
        start, stop = self._pieces.pop()
        try:
            moved = available() >= self.left + RESERVE and _replace(start, stop - start)
        except (OSError, MemoryError):
            moved = False
        self.left -= stop - start
        if not moved:
            self._pieces, self.left = [], 0
        if not self._pieces:
            self._held = ()


class Share:
    """Moves between the steps of a reply, for a share of the time."""

    def __init__(self) -> None:
        self._credit_s, self._seen_s = 0.0, perf_counter()

    def __call__(self) -> None:
        now_s = perf_counter()
        self._credit_s = min(self._credit_s + SHARE * (now_s - self._seen_s), AT_ONCE_S)  # reading a long prompt is no credit
        self._seen_s = now_s
        if self._credit_s > 0.0 and move(self._credit_s):
            self._credit_s -= perf_counter() - now_s  # a piece may take longer than there was time for


def later(tensors: Iterable[Tensor]) -> Pages:
    """Note tensors that every pass reads, for `move` on this thread."""
    pages = Pages(tensors if possible() else ())
    if pages.left:
        _noted.waiting.add(pages)
    return pages


def move(seconds: float = AT_ONCE_S) -> bool:
    """Move for about so long what this thread noted. Whether something is left."""
    until = perf_counter() + seconds
    for pages in list(_noted.waiting):
        while pages.left and perf_counter() < until:
            pages.move()
        if not pages.left:
            _noted.waiting.discard(pages)
    return bool(_noted.waiting)


@cache
def possible() -> bool:
    """Whether this system gives large pages of this size to a program that asks for them."""
    if sys.platform != "linux":
        return False
    with suppress(OSError, ValueError):
        enabled = (SETTINGS / "enabled").read_text(encoding="utf-8")
        return "[never]" not in enabled and int((SETTINGS / "hpage_pmd_size").read_text(encoding="utf-8")) == LARGE
    return False


def _ranges(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """First byte and end of what lies together in one storage, in the order of addresses."""
    out: list[tuple[int, int]] = []
    whose = 0
    for owner, start, stop in sorted((t.untyped_storage().data_ptr(), t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors):
        if out and owner == whose and start <= out[-1][1] + GAP:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
        whose = owner
    return out


def _split(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """The whole large pages of a range, in pieces of so many bytes."""
    first, end = start + -start % LARGE, stop - stop % LARGE
    return [(at, min(at + size, end)) for at in range(first, end, size)]


@cache
def _system() -> ctypes.CDLL:
    """The four calls, with their types: an address is no int."""
    system = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    system.mmap.restype, system.mmap.argtypes = address, (address, size, number, number, number, ctypes.c_long)
    system.munmap.restype, system.munmap.argtypes = number, (address, size)
    system.madvise.restype, system.madvise.argtypes = number, (address, size, number)
    system.mremap.restype, system.mremap.argtypes = address, (address, size, size, number, address)
    return system


def _replace(start: int, size: int) -> bool:
    """Copy whole large pages into fresh ones, and put these in their place. False where the system refuses; then all is as it was."""
    system, failed = _system(), ctypes.c_void_p(-1).value
    room = system.mmap(None, size + LARGE, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if room == failed:
        return False
    fresh = room + -room % LARGE
    system.madvise(fresh, size, _ADVISE_LARGE)
    ctypes.memmove(fresh, start, size)
    done: bool = system.mremap(fresh, size, size, _MOVE_TO, start) == start
    if not done:
        system.munmap(room, size + LARGE)
        return False
    if fresh > room:  # what is left of the room: the ends that made it fit
        system.munmap(room, fresh - room)
    if room + LARGE > fresh:
        system.munmap(fresh + size, room + LARGE - fresh)
    return True
