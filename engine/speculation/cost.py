"""What something costs by its size, as measured on this machine."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

KNOWN = 24  # measurements of a size until a change of what it costs is a change of the machine, and none of its own


class Cost:
    """Seconds by size, measured: a running mean per size that follows the machine, straight lines between and behind."""

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        self._mean: dict[float, float] = {float(size): seconds for size, seconds in (measured or {}).items()}
        self._count: dict[float, int] = dict.fromkeys(self._mean, 1)
        self._sizes = sorted(self._mean)
        self._fresh: set[float] = set()  # measured since `settle` was last called
        self._last: float | None = None  # … the last of them

    def add(self, size: int, seconds: float) -> float:
        """One more measurement, and by which factor it changed what is expected of this size. A single slow pass (another program, a page
        fault) moves the mean only a little: a size that looks dear is not chosen again, so nothing would correct it."""
        old, count = self.at(size), self._count.get(size, 0)
        weight = max(1.0 / (count + 1), 0.1)
        if not count:
            insort(self._sizes, size)
        self._mean[size] = old + weight * (min(seconds, 1.5 * old) - old) if old > 0.0 else seconds
        self._count[size] = count + 1
        self._fresh.add(size)
        self._last = size
        return self._mean[size] / old if old > 0.0 else 1.0

    def follow(self, factor: float, again: float = 0.0) -> None:
        """The machine has become slower by this factor, as seen at the last size or elsewhere: what was not measured since `settle` goes
        with it, and what was goes with it by the power `again`, where it is known. A load, a hot laptop or another program slow
        everything, and what looks dear would not be chosen again and never be corrected."""
        for size in self._sizes:
            if size not in self._fresh:
                self._mean[size] *= factor
            elif size != self._last and self._count[size] > KNOWN:
                self._mean[size] *= factor**again

    def cap(self, size: int, seconds: float) -> None:
        """This size costs at most so much, since a larger one does not cost more."""
        if size in self._mean:
            self._mean[size] = min(self._mean[size], seconds)

    def settle(self) -> None:
        """From now on all sizes follow, until they are measured again."""
        self._fresh.clear()
        self._last = None

    def times(self, size: float) -> int:
        """How often this size was measured."""
        return self._count.get(size, 0)

    @property
    def known(self) -> bool:
        """Whether it can tell sizes apart."""
        return len(self._sizes) > 1

    def at(self, size: float) -> float:
        """Expected seconds; 0 when nothing was measured yet."""
        mean, sizes = self._mean, self._sizes
        if size in mean or not sizes:
            return mean.get(size, 0.0)
        i = bisect_left(sizes, size)
        if i == 0:
            return mean[sizes[0]]
        below = sizes[i - 1]
        if i < len(sizes):
            above = sizes[i]
            return mean[below] + (mean[above] - mean[below]) * (size - below) / (above - below)
        slope = (mean[below] - mean[sizes[i - 2]]) / (below - sizes[i - 2]) if i > 1 else 0.0
        return mean[below] + max(slope, 0.0) * (size - below)
