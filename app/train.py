"""A training as seen from outside: its events folded into what a person wants to know, as lines of a log and as the numbers of a screen.

Pure: nothing is drawn here, nothing is started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.pull import clock
from engine.catalog.progress import human
from engine.protocol import Loading
from engine.training.protocol import Answering, Event, Judged, Learning, Plan, Remark, Stage, Trained
from engine.words import counted

BARS = "▁▂▃▄▅▆▇█"
CURVE = 40  # points of a curve


@dataclass(slots=True)
class State:
    """What is known so far."""

    plan: Plan
    stage: str = "Starting"
    answering: Answering | None = None
    learning: Learning | None = None
    judged: Judged | None = None
    best: Judged | None = None
    loading: Loading | None = None
    remarks: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    taus: list[float] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """One more event."""
        match event:
            case Stage(text):
                self.stage, self.loading, self.answering = text, None, None
            case Loading():
                self.loading = event
            case Answering():
                self.answering = event
            case Learning():
                self.learning = event
                self.losses.append(event.loss)
            case Judged():
                self.judged = event
                self.taus.append(event.tau)
                self.best = event if event.best else self.best
            case Remark(text):
                self.remarks.append(text)

    @property
    def share(self) -> float:
        """How much of the present stage is done, 0 to 1."""
        if self.learning is not None and self.learning.steps:
            return self.learning.step / self.learning.steps
        if self.answering is not None and self.answering.wanted:
            return min(self.answering.done / self.answering.wanted, 1.0)
        if self.loading is not None and self.loading.total:
            return self.loading.done / self.loading.total
        return 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until the present stage ends, None where nobody knows."""
        if self.learning is not None:
            return self.learning.eta_s if self.learning.steps else None
        return self.answering.eta_s if self.answering is not None else None


def line(event: Event) -> str | None:
    """An event as one line of a log; None for what is only worth a screen."""
    match event:
        case Stage(text):
            return text
        case Remark(text):
            return f"note: {text}"
        case Answering():
            return f"data: {answering(event)}"
        case Learning():
            return f"training: {learning(event)}"
        case Judged():
            return f"trial: {judged(event)}"
        case _:
            return None


def answering(event: Answering) -> str:
    """1,200 of 50,000 tokens in 9 replies · 212 tok/s · 3:50 min left."""
    done = f"{event.done:,} of {counted(event.wanted, 'token')}" if event.wanted else counted(event.done, "token")
    left = f" · {clock(event.eta_s)} left" if event.eta_s > 0 else ""
    return f"{done} in {counted(event.texts, 'reply')} · {event.tok_per_s:.0f} tok/s{left}"


def learning(event: Learning) -> str:
    """step 120 of 900 · pass 1.3 · loss 2.104 · 410 tok/s · 9:10 min left."""
    steps = f"step {event.step:,} of {event.steps:,}" if event.steps else f"step {event.step:,} (timing)"
    left = f" · {clock(event.eta_s)} left" if event.steps else ""
    return f"{steps} · pass {event.epoch:.1f} · loss {event.loss:.3f} · {event.tok_per_s:.0f} tok/s{left}"


def judged(event: Judged) -> str:
    """tau 1.62 on held-out topics, right by position 48% 31% 22%, expected 1.24x · the best so far."""
    right = " ".join(f"{share:.0%}" for share in event.agreement)
    gain = f", expected {event.speedup:.2f}x" if event.speedup else ""
    end = (
        " · the best so far"
        if event.best
        else f" · ends after {event.patience} more without a better one"
        if event.patience
        else " · ends here"
    )
    return f"tau {event.tau:.2f} on held-out topics, right by position {right}{gain}{end}"


def summary(done: Trained) -> str:
    """What a person should know at the end."""
    measured = done.measured
    kept = " ".join(f"{share:.0%}" for share in measured.kept)
    use = f"-d {done.name}" if done.name else f"-d '{done.out}'"
    text = [
        f"{done.kind} heads are in {done.out} ({clock(done.seconds)}, "
        f"{counted(done.tokens, 'token')} of data, {counted(done.steps, 'step')}).",
        f"On new topics: tau {measured.tau:.2f} ± {measured.spread:.2f}, kept by position {kept}, "
        f"expected {measured.speedup:.2f}x on this machine.",
        f"Use them: specchat run {use} 'PROMPT'",
        f"The work in {done.out / 'work'} takes {human(done.work_bytes)}; it can be deleted, or used again with --resume --again.",
    ]
    if not measured.same_text:
        text.append("The text was not bit for bit the same as without heads: on this device near-ties can go either way.")
    return "\n".join(text)


def as_json(done: Trained) -> dict[str, Any]:
    """The same for a program."""
    measured = done.measured
    return {
        "out": str(done.out),
        "name": done.name or None,
        "kind": done.kind,
        "tau": measured.tau,
        "tau_spread": measured.spread,
        "kept": list(measured.kept),
        "measured_tokens": measured.tokens,
        "same_text": measured.same_text,
        "expected_speedup": measured.speedup,
        "tokens": done.tokens,
        "steps": done.steps,
        "seconds": done.seconds,
        "work_bytes": done.work_bytes,
    }


def curve(values: Sequence[float], points: int = CURVE) -> str:
    """Values as a row of bars, the newest last; a long row is thinned out."""
    if len(values) > points:
        values = [values[round(i * (len(values) - 1) / (points - 1))] for i in range(points)]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in values)
