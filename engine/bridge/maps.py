"""From a drafter's ids to a target's: which tokens are the same bytes, and which pieces of the target spell the others.

`same` is the intersection of TLI (Timor et al., ICML 2025, algorithm 4), in bytes. `first` and `rest` are the push-forward: what the
target's own encoder makes of the drafter token's bytes, or, for part of a character, the longest tokens that fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from engine.bridge import shelf
from engine.bridge.codec import Codec

VERSION = 1  # of the way maps are made


@dataclass(frozen=True)
class VocabularyMap:
    """By drafter id, D of them."""

    same: np.ndarray  # (D,) int32: the canonical target id with the same bytes, -1 = none
    first: np.ndarray  # (D,) int32: the first target piece, -1 = unmappable
    more: np.ndarray  # (D + 1,) int32: where in `later` the remaining pieces of a token begin
    later: np.ndarray  # (n,) int32
    ends: dict[int, int]  # drafter end of turn -> the target's, as its template writes it

    @cached_property
    def rest(self) -> dict[int, tuple[int, ...]]:
        """Remaining pieces of the drafter tokens that need several."""
        starts, later = self.more.tolist(), self.later.tolist()
        return {d: tuple(later[starts[d] : starts[d + 1]]) for d in np.flatnonzero(np.diff(self.more)).tolist()}

    @property
    def intersection(self) -> int:
        """How many drafter tokens are the bytes of a target token."""
        return int((self.same >= 0).sum())


def vocabulary_map(target: Codec, drafter: Codec) -> VocabularyMap:
    """The map of a pair, from the disk where it is known."""
    name = f"map-{VERSION}-{target.table.key}-{drafter.table.key}"
    ends = dict.fromkeys(sorted(drafter.table.ends), target.turn_end) if target.turn_end is not None else {}
    arrays = shelf.find(name)
    if arrays is not None and _fits(arrays, len(target.table.tokens), len(drafter.table.tokens)):
        return VocabularyMap(arrays["same"], arrays["first"], arrays["more"], arrays["later"], ends)
    arrays = _made(target, drafter)
    shelf.put(name, arrays)
    return VocabularyMap(arrays["same"], arrays["first"], arrays["more"], arrays["later"], ends)


def _made(target: Codec, drafter: Codec) -> dict[str, np.ndarray]:
    tokens = drafter.table.tokens
    wanted = [d for d, token in enumerate(tokens) if token is not None]
    texts = [tokens[d] or b"" for d in wanted]
    same = np.full(len(tokens), -1, dtype=np.int32)
    first = np.full(len(tokens), -1, dtype=np.int32)
    counts = np.zeros(len(tokens) + 1, dtype=np.int32)
    later: list[int] = []
    for d, text, pieces in zip(wanted, texts, target.encode_many(texts), strict=True):
        same[d] = target.ids.get(text, -1)
        if not _is_text(text):
            pieces = target.pieces(text)
        if pieces and target.spell(pieces) == text:
            first[d] = pieces[0]
            counts[d + 1] = len(pieces) - 1
            later += pieces[1:]
    return {"same": same, "first": first, "more": np.cumsum(counts, dtype=np.int32), "later": np.array(later, dtype=np.int32)}


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fits(arrays: dict[str, np.ndarray], n_target: int, n_drafter: int) -> bool:
    """Whether stored arrays can be a map of this size: shapes, ranges and offsets."""
    try:
        same, first, more, later = (arrays[name] for name in ("same", "first", "more", "later"))
        ids = (same, first, later)
        return bool(
            same.shape == first.shape == (n_drafter,)
            and more.shape == (n_drafter + 1,)
            and all(a.dtype == np.int32 and a.ndim == 1 and (not a.size or (a.min() >= -1 and a.max() < n_target)) for a in ids)
            and more[0] == 0
            and more[-1] == len(later)
            and (np.diff(more) >= 0).all()
        )
    except (KeyError, IndexError, AttributeError, ValueError):
        return False
