"""SLEM: string-level exact match (Timor et al., ICML 2025, algorithm 2), in bytes.

The drafter writes text in its own tokens; the target's encoder turns the new bytes into candidates, in the light of what stands before
them. The law of a candidate is not known, so each is certain for the ratio rule: what the target draws must be equal. Above temperature 0
the drafter still writes what it finds likeliest: p(best) is the most that a draft of certain tokens can be kept.
"""

from __future__ import annotations

import string

from torch import Tensor

from engine.bridge.align import DRAFT_BYTES, TRANSLATE_BYTES, WINDOW_BYTES
from engine.bridge.codec import Codec
from engine.drafters.companion import Companion
from engine.drafters.cross import Drafted
from engine.drafters.opening import likeliest, reopen
from engine.speculation import noise
from engine.speculation.draft import Context
from engine.speculation.sampling import Picker, Row

_SIGNS = frozenset(bytes([b]) for b in (string.punctuation + " ").encode())


class Slem:
    """See the module. `sampled`: draw the draft instead, for comparison."""

    name = "slem"

    def __init__(self, ends: dict[int, int], sampled: bool = False) -> None:
        """`ends`: the drafter's end-of-turn ids, and the target's for each (`VocabularyMap.ends`)."""
        self._ends = ends
        self._sampled = sampled

    def draft(self, side: Companion, ctx: Context, budget: int) -> Drafted:
        """Draft until there are `budget` candidates, or one more is not worth its pass; translate as often as a step may encode."""
        follower, before = side.follower, side.follower.encoded
        picker = Picker(ctx.picker.filters, ctx.picker.seed) if self._sampled else side.own
        path: list[int] = []
        end: int | None = None
        tokens: list[int] = []
        logits: Tensor | None = None
        if not follower.held:
            logits = reopen(side)[1]
        elif not self._inside(side):
            return Drafted([])
        extended, stopped = False, side.room() <= 0
        missing, sure = budget - len(follower.drafted[:1]), 1.0
        while not stopped and not ctx.cancelled():
            for _ in range(missing):
                logits = side.logits() if logits is None else logits
                token = picker.pick(logits[None], [Row(ctx.next_index + len(path), tuple(path))], noise.PROPOSE)[0]
                data = side.drafter.table.tokens[token]
                stopped = data is None or len(follower.drafted) + len(data) > DRAFT_BYTES
                if stopped:
                    end = self._ends.get(token) if data is None else None
                    break
                side.put(token)
                path.append(token)
                sure, logits = sure * side.chance(logits, token), None
                if stopped := side.room() <= 0 or not side.pays(sure):
                    break
            with side.translating():
                tokens = follower.candidates(end is not None)
            if stopped or follower.encoded - before + WINDOW_BYTES + len(follower.drafted) + missing > TRANSLATE_BYTES:
                break
            missing = budget - len(tokens)
            if missing == 0 and not extended and is_open(follower.drafted):
                missing, extended = 1, True
            if missing <= 0:
                break
        tokens = tokens[:budget]
        begun = Codec.whole(follower.news) < len(follower.news) or (follower.held and not follower.news)
        if end is None or len(tokens) == budget or begun:  # no turn ends inside a character
            return Drafted(tokens)
        return Drafted([*tokens, end], end=len(tokens))

    def _inside(self, side: Companion) -> bool:
        """Begin with a token that goes on with the character which the reply has begun; False where there is none."""
        logits = side.logits()
        with side.translating():
            token = likeliest(logits, side.beginnings.of(side.follower.held))
        if token is not None:
            side.put(token)
        return token is not None


def is_open(data: bytes) -> bool:
    """Whether what begins with these last bytes is often one token with them: `_` before a name, a space before a word."""
    return data[-1:] in _SIGNS
