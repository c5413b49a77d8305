"""What the engine leaves to Python's collector."""

from __future__ import annotations

import gc
import time
import weakref

from engine.machine import free_memory


class Ring:
    """Refers to itself: only the collector takes it away."""

    def __init__(self) -> None:
        self.ring = self


def test_a_reply_is_not_held_up_by_objects_that_were_there_before() -> None:
    kept = [Ring() for _ in range(300_000)]
    free_memory()
    begun_s = time.perf_counter()
    gc.collect()
    short_s = time.perf_counter() - begun_s
    gc.unfreeze()
    begun_s = time.perf_counter()
    gc.collect()
    long_s = time.perf_counter() - begun_s
    assert short_s < long_s / 4, f"{short_s * 1000:.1f} ms against {long_s * 1000:.1f} ms for {len(kept):,} objects more"


def test_what_was_in_use_at_one_time_is_freed_at_the_next() -> None:
    ring = Ring()
    gone = weakref.ref(ring)
    free_memory()
    del ring
    gc.collect()
    assert gone() is not None, "out of the collector's sight"
    free_memory()
    assert gone() is None
