"""Measures drafters on one target: the same prompts and seeds for every lane, plain decoding first and last. No drawing.

One lane runs at a time. Each time a lane has its turn, a short reply to another prompt warms it up and is thrown away, so
that no lane finds the prompt of the lane before it in the cache. All texts must be equal to those of the first plain lane, token
by token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import median

from app.driver import Answer, Driver, cancelled
from app.intervals import Unit
from app.prompts import Prompt
from app.seeds import reply_seed
from engine.catalog.specs import NONE, ModelSpec
from engine.errors import EngineError
from engine.protocol import Generate, Load, LoadOptions, Message, Prefill, Ready, Step, SwapDrafter
from engine.stats import Tally

PLAIN_DRIFT = 0.03  # plain runs that differ by more mean heat or other load
WARM_UP_PROMPT = "Count from one to twenty in words."
WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. `template` is a Generate with everything but prompt, seed and number."""

    target: ModelSpec
    drafters: tuple[ModelSpec, ...]
    prompts: tuple[Prompt, ...]
    template: Generate
    load: LoadOptions
    method: str = "auto"
    repeat: int = 1
    seed: int = 0
    plain_again: bool = True  # plain decoding at the end too: shows whether the machine became slower meanwhile
    ready: Ready | None = None  # the target is loaded already


@dataclass(frozen=True, slots=True)
class Run:
    """One reply of one lane."""

    repeat: int  # from 1
    prompt: int  # from 1
    answer: Answer
    steps: tuple[Step, ...]  # without their segments, which the answer has


@dataclass(slots=True, eq=False)
class Lane:
    """One drafter, or plain decoding at one of its places."""

    drafter: ModelSpec
    place: str = ""  # of plain: "first" or "last", or "only"
    method: str = ""
    runs: list[Run] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    error: EngineError | None = None

    @property
    def title(self) -> str:
        return f"{self.drafter.name}, {self.place}" if self.place in ("first", "last") else self.drafter.name

    @property
    def decode_s(self) -> float:
        return sum(run.answer.stats.decode_s for run in self.runs)

    @property
    def tok_per_s(self) -> float:
        """All emitted tokens over all decode time."""
        return self.tally.emitted / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def units(self) -> dict[int, Unit]:
        """Tokens and seconds of each prompt, all repeats together."""
        sums: dict[int, Unit] = {}
        for run in self.runs:
            emitted, decode_s = sums.get(run.prompt, (0, 0.0))
            sums[run.prompt] = (emitted + sum(step.emitted for step in run.steps), decode_s + run.answer.stats.decode_s)
        return sums

    def about(self, prompts: set[int]) -> Lane:
        """The same lane with the replies to these prompts only."""
        part = Lane(self.drafter, self.place, self.method, [run for run in self.runs if run.prompt in prompts], error=self.error)
        for run in part.runs:
            part.count(run)
        return part

    def count(self, run: Run) -> None:
        """Add a reply to the totals."""
        for step in run.steps:
            self.tally.add(step)
        if run.answer.done.stop_id is not None:
            self.tally.stopped()

    @property
    def ttft_s(self) -> float:
        return median(run.answer.stats.ttft_s for run in self.runs) if self.runs else 0.0


@dataclass(slots=True)
class Result:
    """All lanes, in the order of the table."""

    plan: Plan
    lanes: list[Lane]
    ready: Ready | None = None
    stopped: bool = False

    @property
    def plain(self) -> Lane:
        """All runs of plain decoding together."""
        whole = Lane(NONE)
        for lane in self.lanes:
            whole.runs += lane.runs if lane.place else []
        return whole.about({run.prompt for run in whole.runs})

    @property
    def plain_tok_per_s(self) -> float:
        """Both plain lanes together."""
        plain = [lane for lane in self.lanes if lane.place]
        decode_s = sum(lane.decode_s for lane in plain)
        return sum(lane.tally.emitted for lane in plain) / decode_s if decode_s > 0 else 0.0

    def about(self, task: str) -> Result:
        """The part of the result that is about one kind of task."""
        prompts = {n for n, prompt in enumerate(self.plan.prompts, start=1) if prompt.task == task}
        return Result(self.plan, [lane.about(prompts) for lane in self.lanes], self.ready, self.stopped)

    def difference(self, lane: Lane) -> tuple[int, int] | None:
        """Prompt and token, both from 1, where a lane's text first differs from plain; None when all are equal."""
        reference = {run.prompt: run.answer.done.token_ids for run in reversed(self.lanes[0].runs)}
        for run in lane.runs:
            ours, plain = run.answer.done.token_ids, reference.get(run.prompt)
            if plain is not None and ours != plain:
                same = next((i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), min(len(ours), len(plain)))
                return run.prompt, same + 1
        return None

    def same_text(self, lane: Lane) -> bool | None:
        """True when every reply equals plain decoding's; None when there is nothing to compare."""
        return self.difference(lane) is None if lane.runs and self.lanes[0].runs else None

    def notes(self) -> list[str]:
        """What a reader of the table should know."""
        first, last = self.lanes[0], self.lanes[-1]
        notes = [f"{lane.title}: {lane.error.message} {lane.error.hint}".rstrip() for lane in self.lanes if lane.error]
        if first.tok_per_s and last.tok_per_s and last.place == "last":
            drift = last.tok_per_s / first.tok_per_s - 1
            if abs(drift) > PLAIN_DRIFT:
                notes.append(
                    f"The two plain runs differ by {abs(drift):.0%} (the last is {'faster' if drift > 0 else 'slower'}): "
                    "heat or other programs disturb the measurement."
                )
        sampled_ratio = self.plan.template.verify == "ratio" and self.plan.template.sampling.temperature != 0
        for lane in self.lanes[1:]:
            if where := self.difference(lane):
                reason = "the ratio rule samples other text by design" if sampled_ratio and not lane.place else "it should not"
                notes.append(f"{lane.title}: the text of prompt {where[0]} differs from plain at token {where[1]}; {reason}.")
        if self.stopped:
            notes.append("Stopped before the end: the table holds what was measured until then.")
        return notes


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the bench is. Numbers from 1; `prompt` 0 while a drafter loads or warms up."""

    lane: int
    lanes: int
    title: str
    repeat: int
    prompt: int
    prompts: int
    tokens: int
    row: int = 0  # index of the lane in the result
    event: Prefill | Step | None = None  # what has just come
    answer: Answer | None = None  # the reply that has just ended


def measure(plan: Plan, driver: Driver, progress: Callable[[Progress], None] = lambda now: None) -> Result:
    """Run all lanes. A lane that fails keeps its error and the others go on; a stop ends with what was measured."""
    plain = [Lane(NONE, "first"), Lane(NONE, "last")] if plan.plain_again else [Lane(NONE, "only")]
    lanes = [plain[0], *(Lane(drafter) for drafter in plan.drafters), *plain[1:]]
    result = Result(plan, lanes, plan.ready)
    try:
        progress(Progress(1, len(lanes), lanes[0].title, 1, 0, len(plan.prompts), 0))
        if plan.ready is None:
            result.ready = driver.load(Load(plan.target, NONE, replace(plan.load, settle=True)))
        replies = count(1)
        for repeat in range(1, plan.repeat + 1):
            for place, lane in enumerate(_order(lanes, plan.seed, repeat), start=1):
                now = Progress(place, len(lanes), lane.title, repeat, 0, len(plan.prompts), 0, lanes.index(lane))
                if lane.error is None:
                    _run_lane(plan, driver, lane, replies, now, progress)
    except EngineError as error:
        if error.kind != "cancelled":
            raise
        result.stopped = True
    return result


def _run_lane(plan: Plan, driver: Driver, lane: Lane, replies: Iterator[int], now: Progress, progress: Callable[[Progress], None]) -> None:
    """All prompts once on one lane."""
    try:
        progress(now)
        ready = driver.load(SwapDrafter(lane.drafter, "auto" if lane.place else plan.method))
        lane.method = ready.method
        warm_up = replace(command_for(plan, WARM_UP_PROMPT, 0, next(replies)), max_tokens=WARM_UP_TOKENS)
        _finished(driver.reply(warm_up, ready))
        for number, prompt in enumerate(plan.prompts, start=1):
            steps: list[Step] = []

            tokens = 0

            def watch(event: Prefill | Step, steps: list[Step] = steps, number: int = number) -> None:
                nonlocal tokens
                if isinstance(event, Step):
                    steps.append(replace(event, segments=()))
                    tokens += event.emitted
                progress(replace(now, prompt=number, tokens=tokens, event=event))

            command = command_for(plan, prompt.text, number - 1, next(replies))
            answer = _finished(driver.reply(command, ready, progress=watch))
            lane.runs.append(Run(now.repeat, number, answer, tuple(steps)))
            lane.count(lane.runs[-1])
            progress(replace(now, prompt=number, tokens=tokens, answer=answer))
    except EngineError as error:
        if error.kind == "cancelled":
            raise
        lane.error = error


def _order(lanes: list[Lane], seed: int, repeat: int) -> list[Lane]:
    """Plain first and last; the first round as given, later ones shuffled, so that no drafter always follows the same one."""
    last = [lane for lane in lanes if lane.place == "last"]
    middle = [lane for lane in lanes if not lane.place]
    if repeat > 1:
        random.Random(f"{seed}/{repeat}").shuffle(middle)
    return [lanes[0], *middle, *last]


def command_for(plan: Plan, prompt: str, turn: int, reply: int) -> Generate:
    """The same command for every lane: prompt number `turn` always has the same seed."""
    template = plan.template
    seed = reply_seed(plan.seed, turn, 0)
    if template.raw is not None:
        return replace(template, reply=reply, raw=prompt, seed=seed)
    return replace(template, reply=reply, messages=(*template.messages, Message("user", prompt)), seed=seed)


def _finished(answer: Answer) -> Answer:
    """Half a reply measures nothing."""
    if answer.done.finish_reason == "cancelled":
        raise cancelled()
    return answer
