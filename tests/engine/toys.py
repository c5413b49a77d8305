"""Toy models for exact enumeration: laws of small fractions for every text, behind the faces of a target and of a drafter's runner."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.decoder.tokenizer import Tokenizer
from engine.protocol import Verify
from engine.speculation.control import Controller
from engine.speculation.draft import Context, Drafter
from engine.speculation.loop import Emitted, Limits, StepResult, generate
from engine.speculation.sampling import Filters, Picker
from tests.engine.exact import Law, Text

SAMPLED = Filters(temperature=1.0)
START, END = 0, 1  # special ids of every toy tokenizer


class Laws:
    """A law per text over `support` of the ids, drawn anew for each text; its probabilities are multiples of 1 / parts. Texts of
    `deep` ids and more have one possible token only, not END: what lies there is passed through, but costs the enumeration nothing."""

    def __init__(self, seed: object, ids: Sequence[int], support: int | None = None, deep: int = 99, parts: int = 12) -> None:
        self.seed, self.ids, self.support, self.deep, self.parts = seed, list(ids), support or len(ids), deep, parts
        self._laws: dict[Text, Law] = {}
        self._logits: dict[tuple[Text, int], torch.Tensor] = {}

    def __call__(self, text: Text) -> Law:
        if text not in self._laws:
            rng = random.Random(f"{self.seed} {text}")
            words = [i for i in self.ids if i != END]
            chosen = [rng.choice(words)] if len(text) >= self.deep else sorted(rng.sample(self.ids, min(self.support, len(self.ids))))
            cuts = sorted(rng.sample(range(1, self.parts), len(chosen) - 1))
            self._laws[text] = {i: Fraction(b - a, self.parts) for i, a, b in zip(chosen, [0, *cuts], [*cuts, self.parts], strict=True)}
        return self._laws[text]

    def logits(self, text: Text, vocab_size: int) -> torch.Tensor:
        """(1, V) in float64."""
        key = text, vocab_size
        if key not in self._logits:
            row = torch.zeros(1, vocab_size, dtype=torch.float64)
            for i, w in self(text).items():
                row[0, i] = w.numerator / w.denominator
            self._logits[key] = row.log()
        return self._logits[key]


def filtered(law: Law, filters: Filters, text: Text = ()) -> Law:
    """The same law behind a repetition penalty of 1 or 2 for the tokens of `text`, temperature 1 or 1/2, top-k, top-p and min-p, in
    fractions."""
    if filters.repeat_penalty != 1.0:
        assert filters.repeat_penalty == 2.0
        law = {i: w**2 if i in text else w for i, w in law.items()}
        law = {i: w / sum(law.values()) for i, w in law.items()}
    if filters.greedy:
        return {max(law, key=lambda i: (law[i], -i)): Fraction(1)}
    power = {1.0: 1, 0.5: 2}[filters.temperature]
    left = [(i, law[i] ** power) for i in sorted(law, key=lambda i: (-law[i], i))]
    if filters.top_k:
        left = left[: filters.top_k]
    total = sum(w for _, w in left)
    mass, kept = Fraction(0), []
    for i, w in left:
        if mass < Fraction(filters.top_p).limit_denominator(1000) and w >= left[0][1] * Fraction(filters.min_p).limit_denominator(1000):
            kept.append((i, w))
        mass += w / total
    total = sum(w for _, w in kept)
    return {i: w / total for i, w in kept}


@dataclass
class Toy:
    """A model without weights: `law` of the ids behind the first `start`. Runs as a target and as a drafter's runner."""

    law: Laws
    vocab_size: int
    start: int = 0
    context: int = 64
    exact: bool = True
    max_nodes: int = 16
    taps: torch.Tensor | None = None
    ids: list[int] = field(default_factory=list)
    passes: int = 0
    _rows: list[Text] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def prefill(self, ids: list[int], progress: object = None, cancelled: object = None) -> bool:
        self.ids += ids
        return True

    def verify(self, tokens: torch.Tensor, parents: tuple[int, ...]) -> torch.Tensor:
        paths = [(int(tokens[0]),)]
        for token, parent in zip(tokens[1:].tolist(), parents, strict=True):
            paths.append((*paths[parent], token))
        self._rows = paths
        self.passes += 1
        return torch.cat([self._row(tuple(self.ids[self.start :]) + path) for path in paths])

    def _row(self, text: Text) -> torch.Tensor:
        if self.start > len(self.ids):  # the root is part of the prompt
            text = text[self.start - len(self.ids) :]
        return self.law.logits(text, self.vocab_size)

    def next(self, ids: list[int]) -> torch.Tensor:
        logits = self.verify(torch.tensor(ids), tuple(range(len(ids) - 1)))[-1:]
        self.ids += ids
        return logits

    def keep(self, rows: tuple[int, ...]) -> None:
        self.ids += self._rows[rows[-1]]
        assert len(rows) == len(self._rows[rows[-1]])

    def truncate(self, length: int) -> int:
        del self.ids[length:]
        return len(self.ids)

    def memory(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        self.ids.clear()


def reply(
    target: Toy,
    drafter: Drafter | None,
    *,
    k: int = 2,
    rule: Verify = "ratio",
    length: int = 3,
    filters: Filters = SAMPLED,
    stop_ids: frozenset[int] = frozenset(),
    prompt: Sequence[int] = (0,),
    seed: int = 0,
    heard: Callable[[StepResult], None] = lambda step: None,
) -> Text:
    """The first `length` tokens of a reply, through the shipped loop; a stop id ends it and is its last. `heard`: told of each step."""
    target.truncate(0)
    target.start = len(prompt)
    target.prefill(list(prompt[:-1]))
    ctx = Context(list(prompt), len(prompt), 0, Picker(filters, seed), vocab_size=target.vocab_size)
    ctx.with_laws = rule == "ratio" and not filters.greedy
    control = Controller()
    control.k = k
    if drafter is not None:
        drafter.sync(ctx)
    out: list[int] = []

    def push(token: Emitted) -> bool:
        out.append(token.token)
        return len(out) < length

    stopped: list[int] = []

    def emit(step: StepResult) -> None:
        stopped.extend([step.stop_id] if step.stop_id is not None else [])
        heard(step)

    generate(
        target,
        ctx,
        Limits(length + k + 1, target.context, stop_ids),  # room for whole drafts
        control,
        push,
        emit,
        lambda: False,
        lambda: drafter,
        rule,
    )
    assert ctx.ids[len(prompt) :] == out
    return (*out, *stopped)


def product(p: Laws, length: int = 3, filters: Filters = SAMPLED, stop_ids: frozenset[int] = frozenset()) -> dict[Text, Fraction]:
    """What the joint law must be."""
    done: dict[Text, Fraction] = {}
    live = {(): Fraction(1)}
    for _ in range(length):
        grown: dict[Text, Fraction] = {}
        for text, weight in live.items():
            for token, w in filtered(p(text), filters, text).items():
                (done if token in stop_ids else grown)[(*text, token)] = weight * w
        live = grown
    return done | live


TEMPLATE = "<s>{% for m in messages %}{{ m['content'] }}<end>{% endfor %}"


def tokenizer(name: str, letters: str, merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    """A byte-level tokenizer that knows these letters and what the merges make of them, in this order, behind START and END. A letter
    is one byte as the byte-level alphabet writes it: `Ã©` are the two bytes of é."""
    backend = Backend(models.BPE(_vocabulary(letters, merges), list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _wrapped(backend, name, TEMPLATE)


def sentencepiece(name: str, letters: str, merges: Sequence[tuple[str, str]] = (), twins: str = "", lead: bool = False) -> Tokenizer:
    """A SentencePiece-like tokenizer, `▁` for a space. `twins`: letters that are bytes to fall back to as well, with ids behind all others.
    `lead`: it has a dummy prefix and no template, so a reply stands behind a label, and the space between them belongs to the format."""
    words = _vocabulary(letters, merges)
    words |= {f"<0x{ord(letter):02X}>": len(words) + i for i, letter in enumerate(twins)}
    backend = Backend(models.BPE(words, list(merges), byte_fallback=bool(twins)))
    backend.normalizer = normalizers.Sequence([*([normalizers.Prepend("▁")] if lead else []), normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if lead else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return _wrapped(backend, name, None if lead else TEMPLATE)


def _vocabulary(letters: str, merges: Sequence[tuple[str, str]]) -> dict[str, int]:
    return {word: i for i, word in enumerate(["<s>", "<end>", *letters, *(left + right for left, right in merges)])}


def _wrapped(backend: Backend, name: str, template: str | None) -> Tokenizer:
    backend.add_special_tokens(["<s>", "<end>"])
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="<end>")
    hf.chat_template = template
    return Tokenizer(hf, name, frozenset([END]))
