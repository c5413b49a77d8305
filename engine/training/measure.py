"""Finished heads beside their target: real decoding of held-out prompts, greedy, through the loop that serves a chat."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from engine import costs
from engine.decoder.target import LeanTarget
from engine.drafters.heads.drafter import HeadsDrafter
from engine.speculation.control import Controller
from engine.speculation.cost import Cost
from engine.speculation.draft import Context
from engine.speculation.loop import Limits, StepResult, generate
from engine.speculation.sampling import Filters, Picker
from engine.training.judge import speedup
from engine.training.protocol import Measured
from engine.training.shards import Text

DRAFTS = 6  # timed drafts of each length
TIMED_PROMPT = 64  # tokens


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a pass by its rows, and of a draft by its nodes."""

    verify: Cost
    draft: Cost

    def sentence(self, nodes: int) -> str:
        """For the person."""
        one, many, draft = (1e3 * s for s in (self.verify.at(1), self.verify.at(nodes + 1), self.draft.at(nodes)))
        return (
            f"A pass of the target takes {one:.1f} ms for one row, {many:.1f} ms for {nodes + 1}; drafting {nodes} tokens {draft:.1f} ms."
        )


def cost_of(target: LeanTarget, drafter: HeadsDrafter, longest: int) -> Costs:
    """Time the target and these heads on this machine."""
    target.truncate(0)
    prompt = [1 % target.vocab_size] * TIMED_PROMPT
    _read(target, drafter, prompt)
    ctx = Context(list(prompt), len(prompt), 0, Picker(Filters(), 1), vocab_size=target.vocab_size)
    draft: dict[int, float] = {0: 0.0}
    for nodes in range(1, longest + 1):
        ctx.budget = lambda source, nodes=nodes: nodes  # type: ignore[misc]
        times = []
        for _ in range(DRAFTS):
            begun = perf_counter()
            drafter.propose(ctx)
            times.append(perf_counter() - begun)
        draft[nodes] = median(times)
    verify = costs.curve(target, tuple(range(1, longest + 2)))
    drafter.rewind([])
    return Costs(Cost(verify), Cost(draft))


def measure(
    target: LeanTarget, drafter: HeadsDrafter, texts: list[Text], most: int, known: Costs, cancelled: Callable[[], bool]
) -> Measured | None:
    """Write the beginnings of these replies again, with at most `most` drafted nodes a step. None when stopped."""
    steps: list[StepResult] = []
    same, tokens = True, 0
    each: list[tuple[int, int]] = []  # tokens and steps of each text
    for text in texts:
        prompt, reply = text.ids[: text.start].tolist(), text.ids[text.start :].tolist()
        target.truncate(0)
        drafter.rewind([])
        _read(target, drafter, prompt)
        control = Controller()
        control.k, control.most = most, drafter.needs.max_nodes
        ctx = Context(list(prompt), len(prompt), 0, Picker(Filters(), 1), vocab_size=target.vocab_size)
        limits = Limits(len(reply), target.context, frozenset())
        generate(target, ctx, limits, control, lambda _: True, steps.append, cancelled, lambda: drafter)
        if cancelled():
            return None
        same &= ctx.ids[len(prompt) :] == reply
        written = len(ctx.ids) - len(prompt)
        each.append((written, len(steps) - sum(n for _, n in each)))
        tokens += written
    target.truncate(0)
    deepest = max((step.drafted for step in steps), default=0)
    kept = tuple(
        sum(step.accepted > i for step in steps if step.drafted > i and step.accepted >= i)
        / max(sum(step.drafted > i and step.accepted >= i for step in steps), 1)
        for i in range(deepest)
    )
    return Measured(tokens / max(len(steps), 1), kept, tokens, same, speedup(kept, known.verify, known.draft), spread(each))


def spread(each: list[tuple[int, int]]) -> float:
    """Half of the 95 % interval of tokens / steps, for texts with so many of both: the error of a ratio of two sums."""
    tokens, steps = (sum(column) for column in zip(*each, strict=True)) if each else (0, 0)
    if len(each) < 2 or not steps:
        return 0.0
    off = sum((t - tokens / steps * s) ** 2 for t, s in each) * len(each) / (len(each) - 1)
    return 1.96 * math.sqrt(off) / steps


def _read(target: LeanTarget, drafter: HeadsDrafter, prompt: list[int]) -> None:
    """Prompt but its last token, for both."""
    target.needs = drafter.needs
    target.prefill(prompt[:-1], sink=lambda at, taps: drafter.absorb(prompt, at, taps))
