"""A trial: a few tokens with a drafter, measured, then the drafter from before again. Runs in a thread, through `app.driver`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.chat import Chat
from app.driver import Driver, cancelled
from engine.catalog.specs import ModelSpec
from engine.protocol import Generate, Message, Ready, SwapDrafter
from engine.words import counted

TOKENS = 32
SEED = 1
Note = Callable[[str], None]
PROMPT = "Write a short Python function that counts the words of a text, and explain it in three sentences."


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial found. Too few tokens to judge by, enough to see a tendency."""

    drafter: str
    tok_per_s: float
    tau: float
    kept: float  # 0–1
    speedup: float | None  # against the plain rate that the engine measured, an estimate
    tokens: int

    @property
    def words(self) -> str:
        """For a table."""
        speedup = f"{self.speedup:.1f}x " if self.speedup else ""
        return f"{speedup}{self.tok_per_s:.0f} tok/s τ {self.tau:.1f}"

    @property
    def short(self) -> str:
        """For a narrow table."""
        return f"{self.speedup:.1f}x τ {self.tau:.1f}" if self.speedup else f"{self.tok_per_s:.0f} tok/s"


def run(driver: Driver, again: Driver, spec: ModelSpec, back: ModelSpec, method: str, request: Generate, note: Note) -> tuple[Trial, Ready]:
    """Try `spec` with `driver`, which the person may stop; then put `back` in its place with `again`.

    Raises EngineError when the trial fails or is stopped; `back` is restored all the same.
    """
    try:
        note(f"Loading {spec.name}…")
        ready = driver.load(SwapDrafter(spec, method))
        note(f"Writing {counted(TOKENS, 'token')} with {spec.name}…")
        answer = driver.reply(request, ready)
        if answer.done.finish_reason == "cancelled":
            raise cancelled()
    finally:
        note(f"Loading {back.name} again…")
        restored = again.load(SwapDrafter(back, method))
    stats = answer.stats
    plain_s = answer.done.plain_s
    speedup = stats.tok_per_s * plain_s if plain_s and stats.drafted else None
    return Trial(spec.name, stats.tok_per_s, stats.tau, stats.kept, speedup, len(answer.done.token_ids)), restored


def request_for(chat: Chat) -> Generate:
    """The chat's last question once more, else a fixed one. Number 0: no reply of the chat is meant."""
    messages: list[Message] = [Message("system", chat.system)] if chat.system else []
    turns = chat.turns
    for turn in turns:
        messages.append(Message("user", turn.content))
        if turn.answer is not None and turn is not turns[-1]:
            messages.append(Message("assistant", turn.answer.text))
    if not turns:
        messages.append(Message("user", PROMPT))
    return Generate(0, tuple(messages), sampling=chat.sampling, seed=SEED, max_tokens=TOKENS, k=chat.k)
