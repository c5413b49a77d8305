"""What is said below and beside a finished reply: how it ended, its numbers, and whether a fixed draft length paid. No widgets."""

from __future__ import annotations

from app.meter import Numbers
from app.tree import Version
from engine.protocol import Done
from engine.words import counted

SLOWER = 0.97  # of plain speed: nearer to it, a clock on a busy machine cannot tell
LONG_TOKENS = 256  # nobody waits for fewer to be read again
FAIR_TOKENS = 16  # a shorter reply says little about a drafter


def foot(done: Done, tokens: int) -> str:
    """How it ended, where that is no matter of course; `tokens` of the whole reply."""
    parts = []
    if done.trimmed:
        what = "The oldest message is" if done.trimmed == 1 else f"The {done.trimmed} oldest messages are"
        parts.append(f"{what} no longer sent to the model: the context was too short.")
    if done.finish_reason == "length":
        parts.append(f"Ended after {counted(tokens, 'token')}, the limit that was set. /continue goes on.")
    elif done.finish_reason == "context":
        parts.append("Ended because the context is full. ^N starts a new chat.")
    elif done.finish_reason == "cancelled":
        parts.append(f"Stopped by you after {counted(tokens, 'token')}. Kept. ^R answers again, /continue goes on.")
    return " ".join(parts)


def read_again(done: Done, version: Version) -> int:
    """Tokens that had been read for the answer before this one and were read once more: another model, a lost cache, a program that
    began anew."""
    before = version.turn.parent if version.turn is not None else None
    return max(0, min(before.done.prompt_tokens, done.prompt_tokens) - done.reused_tokens) if before is not None else 0


def summary(now: Numbers, done: Done, again: int = 0) -> str:
    """The numbers beside its title; `again`: tokens that were read before."""
    parts = [f"{now.average:.0f} tok/s"] if now.average else []
    parts += [f"τ {now.tau:.1f}"] if now.tau else []
    parts += [f"{now.speedup:.1f}x{'' if now.measured else ' est'}"] if now.speedup else []
    if again >= LONG_TOKENS:
        parts.append(f"re-read {counted(again, 'token')}")
    return " · ".join([*parts, f"seed {done.seed}"])


def slower(now: Numbers, done: Done, k: int | None) -> str:
    """With a fixed `k` nothing turns a losing drafter off by itself, so the person is told; "" where there is nothing to tell."""
    if k is None or now.speedup is None or now.speedup >= SLOWER or len(done.token_ids) < FAIR_TOKENS:
        return ""
    return f"With /k {k} this drafter is slower than plain decoding ({now.speedup:.2f}x): /k auto decides live, /draft off turns it off."
