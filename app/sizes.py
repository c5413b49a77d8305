"""How much a download takes, in words. A model that comes from the hub or else from a package index has two sizes; both are said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec

GB = " GB"


def span(specs: Iterable[ModelSpec]) -> tuple[int, int]:
    """(least, most) bytes to download; (0, 0) where one of them is not known."""
    found = [_two(spec) for spec in specs]
    if not found or any(most == 0 for _, most in found):
        return 0, 0
    return sum(least for least, _ in found), sum(most for _, most in found)


def short(*specs: ModelSpec) -> str:
    """For a table: 98 MB, 1.1–3.1 GB, or ? where nobody knows."""
    least, most = span(specs)
    return words([least, most] if most else [])


def words(sizes: Sequence[int]) -> str:
    """The same for sizes in rising order; none = not known."""
    if not sizes:
        return "?"
    first, last = human(sizes[0]), human(sizes[-1])
    if first == last:
        return last
    return f"{first.removesuffix(GB) if last.endswith(GB) else first}–{last}"


def by_source(*specs: ModelSpec) -> str:
    """For a sentence: 3.1 GB from the hub, or 1.1 GB from the package index; "" where nobody knows."""
    least, most = span(specs)
    if not most or human(least) == human(most):
        return human(most) if most else ""
    hub = sum(spec.size or _two(spec)[1] for spec in specs)
    mirror = sum(spec.mirror.size if spec.mirror is not None else spec.size for spec in specs)
    return f"{human(hub)} from the hub, or {human(mirror)} from the package index where the hub cannot be reached"


def _two(spec: ModelSpec) -> tuple[int, int]:
    """The least and the most bytes of one model, 0 where it is not known."""
    sizes = [size for size in (spec.size if spec.repo else 0, spec.mirror.size if spec.mirror is not None else 0) if size]
    sizes = sizes or [spec.size]
    return min(sizes), max(sizes)
