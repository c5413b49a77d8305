"""What drafters and the loop exchange. The loop knows a drafter only through the protocol here.

Words (DESIGN 2): the *root* is the last committed token, row 0 of every verify and not yet in any cache; a *node* is one drafted token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from engine.protocol import Message
from engine.speculation.sampling import Picker

Budget = Callable[[str], int]  # name of a source -> how many nodes it may draft now
Worth = Callable[[str], tuple[float, float]]  # … -> seconds that one more kept token saves, seconds that one more row costs


class Reader(Protocol):
    """The part of a drafter that reads the target's hidden states, one row per committed position."""

    def rewind(self, ids: list[int]) -> int:
        """Keep what belongs to the beginning of this text; returns the number of positions whose hidden states are held."""

    def absorb(self, ids: list[int], start: int, taps: Tensor) -> None:
        """Take the hidden states (n, F) of positions start, start + 1, … of this text. Those held already are passed over."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter asks the target to export, and the most nodes it can make use of."""

    taps: tuple[int, ...] = ()  # layers whose inputs it reads
    final: bool = False  # hidden states before the LM head, behind the final norm; they stand after the taps
    max_nodes: int = 16
    reader: Reader | None = field(default=None, compare=False)  # who takes them while a prompt is read


class LazyLaw(Protocol):
    """A law whose values are worked out only where they are asked for."""

    def bounds(self, token: int) -> Iterator[tuple[float, float]]:
        """Ever closer (low, high) around ψ(token); the last pair is equal."""


Law = Tensor | LazyLaw | None  # what one node was drawn from: (V,), or found on demand; None = the token is certain (a point mass)


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens without the root; node i is row i + 1 of the verify. Empty is legal."""

    tokens: tuple[int, ...] = ()  # target ids
    parents: tuple[int, ...] = ()  # row of the parent, 0 = the root; parents[i] <= i
    laws: Tensor | Sequence[Law] | None = None  # of each node, for the ratio rule: (n, V) or n of them; None = all are certain
    source: str = ""  # who drafted: the controller keeps its estimates by this name
    note: str = ""
    asked: int = 0  # nodes that were allowed, of a drafter that stops by itself where they are not worth their time

    @property
    def depth(self) -> int:
        """Longest path below the root."""
        deepest = [0]
        for parent in self.parents:
            deepest.append(deepest[parent] + 1)
        return max(deepest)


def chain(tokens: list[int], source: str, laws: Tensor | Sequence[Law] | None = None, note: str = "") -> Draft:
    """A draft without branches."""
    return Draft(tuple(tokens), tuple(range(len(tokens))), laws, source, note)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a draft."""

    path: tuple[int, ...]  # rows kept, the root (0) first
    tokens: tuple[int, ...]  # emitted: the kept nodes, then the target's own token; may be cut by a stop or a limit
    taps: Tensor | None = None  # (len(path), F) hidden states of the path's rows, as the drafter's needs ask for


@dataclass(frozen=True, slots=True)
class Question:
    """What the reply answers, before any tokenizer: a drafter with another one renders it its own way."""

    messages: tuple[Message, ...] = ()
    raw: str | None = None  # a prompt taken as it is, instead of messages
    carry_on: bool = False  # the last message is the reply's beginning


@dataclass(slots=True)
class Context:
    """What a drafter may read. `ids` are prompt and reply so far; the last one is the root. Nobody but the loop writes here, apart from
    `bridge_s` and `read_s`."""

    ids: list[int]
    reply_start: int  # index in `ids` of the reply's first token
    offset: int  # index of that token in the reply: not 0 when a reply is continued
    picker: Picker
    budget: Budget = field(default=lambda source: 0)
    vocab_size: int = 0  # of the target
    with_laws: bool = False  # the ratio rule needs the law of each drafted token
    cancelled: Callable[[], bool] = lambda: False
    question: Question = Question()
    tell: Callable[[str], None] = lambda text: None  # a sentence for the person
    worth: Worth = lambda source: (0.0, 0.0)  # (0, 0): draft what was asked for, whatever it costs
    yields: Callable[[str, str], bool] = lambda source, rival: False  # should the rival draft instead of this source?
    rival: str = ""  # the source that would draft if this one does not
    bridge_s: float = 0.0  # of this step, spent in translation between tokenizers; drafters add what they spent until `commit` is over
    read_s: float = 0.0  # of this step, spent before drafting on text that was written while nothing was drafted; drafters add it

    @property
    def next_index(self) -> int:
        """Index in the reply of the token that the root predicts."""
        return len(self.ids) - self.reply_start + self.offset


class Drafter(Protocol):
    """Proposes; never decides. All its state must follow from the committed ids."""

    name: str
    needs: Needs

    @property
    def method(self) -> str:
        """How it drafts, for people; of one that chooses per reply, that of the last."""

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
