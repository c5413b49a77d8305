"""What drafters and the loop exchange. The loop knows a drafter only through the protocol here.

Words (DESIGN 2): the *root* is the last committed token, row 0 of every verify and not yet in any cache; a *node* is one drafted token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from engine.protocol import Message
from engine.speculation.sampling import Picker

Budget = Callable[[str], int]  # name of a source -> how many nodes it may draft now


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter asks the target to export, and the most nodes it can make use of."""

    taps: tuple[int, ...] = ()  # layers whose outputs it reads
    final: bool = False  # hidden states before the LM head
    max_nodes: int = 16


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens without the root; node i is row i + 1 of the verify. Empty is legal."""

    tokens: tuple[int, ...] = ()  # target ids
    parents: tuple[int, ...] = ()  # row of the parent, 0 = the root; parents[i] <= i
    laws: Tensor | None = None  # (n, V) the law each token was drawn from; None = the token is certain (a point mass)
    source: str = ""  # who drafted: the controller keeps its estimates by this name
    note: str = ""
    bridge_s: float = 0.0  # part of the drafting time that went into translation between tokenizers

    @property
    def depth(self) -> int:
        """Longest path below the root."""
        deepest = [0]
        for parent in self.parents:
            deepest.append(deepest[parent] + 1)
        return max(deepest)


def chain(tokens: list[int], source: str, laws: Tensor | None = None, note: str = "") -> Draft:
    """A draft without branches."""
    return Draft(tuple(tokens), tuple(range(len(tokens))), laws, source, note)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a draft."""

    path: tuple[int, ...]  # rows kept, the root (0) first
    tokens: tuple[int, ...]  # emitted: the kept nodes, then the target's own token; may be cut by a stop or a limit
    taps: Tensor | None = None  # (len(path), F)


@dataclass(frozen=True, slots=True)
class Question:
    """What the reply answers, before any tokenizer: a drafter with another one renders it its own way."""

    messages: tuple[Message, ...] = ()
    raw: str | None = None  # a prompt taken as it is, instead of messages
    carry_on: bool = False  # the last message is the reply's beginning


@dataclass(slots=True)
class Context:
    """What a drafter may read. `ids` are prompt and reply so far; the last one is the root. Nobody but the loop writes here."""

    ids: list[int]
    reply_start: int  # index in `ids` of the reply's first token
    offset: int  # index of that token in the reply: not 0 when a reply is continued
    picker: Picker
    budget: Budget = field(default=lambda source: 0)
    vocab_size: int = 0  # of the target
    with_laws: bool = False  # the ratio rule needs the law of each drafted token
    progress: Callable[[int, int], None] | None = None  # while a drafter reads a long text: done, total
    cancelled: Callable[[], bool] = lambda: False
    question: Question = Question()

    @property
    def next_index(self) -> int:
        """Index in the reply of the token that the root predicts."""
        return len(self.ids) - self.reply_start + self.offset


class Drafter(Protocol):
    """Proposes; never decides. All its state must follow from the committed ids."""

    name: str
    method: str
    needs: Needs

    def sync(self, ctx: Context) -> None:
        """Catch up with the committed ids: first turn, another prompt, hot swap."""

    def propose(self, ctx: Context) -> Draft:
        """A draft of at most `ctx.budget(source)` nodes; empty is legal."""

    def commit(self, ctx: Context, verdict: Verdict) -> None:
        """The draft was judged and `ctx.ids` now ends with the verdict's tokens: roll the own cache back."""

    def memory(self) -> int:
        """Bytes held."""

    def close(self) -> None:
        """Free everything."""
