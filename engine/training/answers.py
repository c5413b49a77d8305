"""The data of one training, part by part: replies about held-out topics first, then training replies until they are enough.

With a number of tokens the training texts are the first ones in the order of their prompts that reach it, whatever finished first: a
stopped and resumed run ends with the same ones. With a time they are all that were finished in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

from engine.catalog.progress import human
from engine.decoder.target import LeanTarget
from engine.decoder.tokenizer import Tokenizer
from engine.errors import EngineError
from engine.training import seeds, shards
from engine.training.distill import Distiller
from engine.training.protocol import Answering, Progress, Remark, Stage
from engine.training.seeds import Part, Seed
from engine.training.shards import Store, Text
from engine.training.work import Work

POSITIONS = 4096  # of a shard
SAY_EVERY_S = 2.0
FEWEST = 8  # texts without which there is nothing to learn from

Emit = Callable[[Progress], None]
Cancelled = Callable[[], bool]


def write(work: Work, target: LeanTarget, tokenizer: Tokenizer, features: str, emit: Emit, cancelled: Cancelled) -> bool:
    """Complete the data; False when stopped. EngineError when the disk is too small."""
    plan = work.plan
    if plan.tokens is not None and not work.memory.texts:
        _space(work, plan.tokens, target, features, emit)
    rate = 0.0
    titles: dict[Part, str] = {"judge": "Asking about held-out topics, to judge by", "report": "Asking about held-out topics, to report on"}
    for part, title in titles.items():
        asked = seeds.held_out(part, plan.seed)
        writer = Writer(work, part, features, emit, sum(seed.max_tokens for seed in asked))
        if len(writer.store) < len(asked):
            emit(Stage(title))
            if not writer.run(target, tokenizer, iter(asked), lambda: True, cancelled):
                return False
            rate = writer.rate
    if work.memory.texts:
        return True
    until = work.data_until_s
    if plan.tokens is None and until is not None:
        _space(work, round(max(until - work.seconds, 0.0) * (rate or 100.0)), target, features, emit)
    emit(Stage("The target answers training prompts"))
    writer = Writer(work, "data", features, emit, plan.tokens or 0)

    def wanted() -> bool:
        if plan.tokens is not None and writer.first(plan.tokens) is not None:
            return False
        return until is None or work.seconds < until

    if not writer.run(target, tokenizer, seeds.training(plan.seed, plan.prompts), wanted, cancelled):
        return False
    texts = (writer.first(plan.tokens) if plan.tokens is not None else None) or writer.store.numbers
    if len(texts) < FEWEST:
        raise EngineError(
            f"Only {len(texts)} training replies were finished, too few to learn from.",
            "Give it more time with --hours, or --tokens 50000, and --resume.",
            kind="config",
        )
    work.memory.texts = texts
    work.save()
    return True


def _space(work: Work, tokens: int, target: LeanTarget, features: str, emit: Emit) -> None:
    there = Store(work.part("data"))
    left = max(tokens - sum(there.replied(number) for number in there.numbers), 0)
    need = shards.check_space(work.part("data"), left, target.model.config.hidden_size, features)
    if left:
        emit(Remark(f"About {tokens:,} tokens of training data, {human(need)} on disk."))


class Writer:
    """One part: asks what is not on disk yet, and writes shards as they fill."""

    def __init__(self, work: Work, part: str, features: str, emit: Emit, wanted: int) -> None:
        self._work, self._folder, self._features, self._emit, self._wanted = work, work.part(part), features, emit, wanted
        self.store = Store(self._folder)
        self._held: dict[int, int] = {number: self.store.replied(number) for number in self.store.numbers}  # number -> tokens
        self._prefix, self._prefix_tokens = 0, 0  # texts that are complete from the first one on
        self._waiting: list[Text] = []
        self.rate = 0.0  # tokens per second

    def run(
        self, target: LeanTarget, tokenizer: Tokenizer, asked: Iterator[Seed], wanted: Callable[[], bool], cancelled: Cancelled
    ) -> bool:
        """Answer as long as more is wanted. What was finished is on disk afterwards, whatever happens."""
        plan = self._work.plan
        distiller = Distiller(target, tokenizer, plan.lanes, plan.seed)
        begun = said = monotonic()

        def more() -> bool:
            nonlocal said
            now = monotonic()
            self.rate = distiller.tokens / max(now - begun, 1e-9)
            if now - said >= SAY_EVERY_S:
                said = now
                self._say()
            return wanted()

        try:
            return distiller.run((seed for seed in asked if seed.number not in self._held), more, self._done, cancelled)
        finally:
            self._flush()
            self._say()
            self._work.save()
            distiller.close()

    def first(self, tokens: int) -> list[int] | None:
        """The first texts that have so many tokens together; None while one of them is missing."""
        while self._prefix_tokens < tokens:
            if self._prefix not in self._held:
                return None
            self._prefix_tokens += self._held[self._prefix]
            self._prefix += 1
        return list(range(self._prefix))

    def _done(self, text: Text) -> None:
        self._held[text.number] = text.replied
        self._waiting.append(text)
        if sum(len(waiting.ids) for waiting in self._waiting) >= POSITIONS:
            self._flush()
            self._work.save()

    def _flush(self) -> None:
        if self._waiting:
            self.store.add(shards.write(self._folder, self._waiting, self._features))
            self._waiting = []

    def _say(self) -> None:
        done, until = sum(self._held.values()), self._work.data_until_s
        left = (self._wanted - done) / self.rate if self._wanted and self.rate > 0 else 0.0
        if until is not None and self._folder.name == "data":
            in_time = max(until - self._work.seconds, 0.0)
            left = min(left, in_time) if self._wanted else in_time
        self._emit(Answering(done, self._wanted, len(self._held), self.rate, max(left, 0.0)))
