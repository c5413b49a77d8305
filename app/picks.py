"""What a picker lists: every model with what it takes, whether it suits the target, whether it fits, what was measured here. No widgets.

Nothing is hidden without a reason: what cannot be used says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from app.surroundings import WITHOUT_FILES, Surroundings
from engine.catalog.progress import human
from engine.catalog.specs import AUTO, NGRAM, NONE, ModelSpec
from engine.protocol import LoadOptions, Memory, Ready
from engine.words import counted

if TYPE_CHECKING:
    from engine.catalog.catalog import Catalog
    from engine.catalog.fit import Verdict

LARGE = 1 / 3  # a drafter of more than this share of the target seldom pays
WORDS = {"none": "plain", "auto": "choice", "ngram": "look-up", "model": "model", "heads": "heads"}
ABOUT = {
    "none": "Plain decoding: every token is the target's own, one after the other. The other numbers are relative to it.",
    "auto": "The best drafter that is on this machine, by what was measured here, with the look-up in front where it has a long match.",
    "ngram": "Looks up in the conversation what followed the last few tokens before. No model, no memory; good for code and rewriting.",
}


@dataclass(frozen=True, slots=True)
class Pick:
    """One line of a picker."""

    spec: ModelSpec
    on_disk: bool
    size: int  # bytes on disk; 0 = not here, or without files
    tokenizer: str = "-"  # same, bridge, unknown, own, -
    tokenizer_about: str = ""
    need: int = 0  # bytes of memory, 0 when not known
    left: int = 0  # bytes free beside it
    verdict: Verdict | None = None
    speedup: float | None = None  # measured here
    blocked: str = ""  # why it cannot be used; "" = it can
    in_use: bool = False
    rare: bool = False  # usable, but seldom what one wants: shown with the blocked ones


@dataclass(frozen=True, slots=True)
class Picks:
    """A whole list, and the memory of the device."""

    picks: tuple[Pick, ...]
    free: int
    total: int


def targets(catalog: Catalog, surroundings: Surroundings, options: LoadOptions, ready: Ready | None) -> Picks:
    """All targets, those on this machine first. What is loaded now is freed before another one comes."""
    free, total = surroundings.free(ready.device if ready is not None else options.device)
    free += _held(ready.memory) if ready is not None else 0
    picks = []
    for spec in sorted(catalog.targets.values(), key=lambda spec: (not surroundings.on_disk(spec), spec.params)):
        pick = _sized(spec, surroundings, options, free, beside=False)
        picks.append(replace(pick, in_use=ready is not None and ready.target == spec.name))
    return Picks(tuple(picks), free, total)


def drafters(catalog: Catalog, surroundings: Surroundings, options: LoadOptions, target: ModelSpec | None, ready: Ready | None) -> Picks:
    """All drafters for a target: the likeliest first, those that cannot be used last, with the reason."""
    free, total = surroundings.free(ready.device if ready is not None else options.device)
    seen = surroundings.recall(ready.target, ready.quant, ready.device.partition(":")[0]) if ready is not None else {}
    likely = [NONE, AUTO, NGRAM, *(catalog.drafters_for(target) if target is not None else ())]
    others = [spec for spec in (*catalog.drafters.values(), *catalog.targets.values()) if target is None or spec.name != target.name]
    names = {spec.name for spec in likely}
    picks = []
    for spec in {spec.name: spec for spec in (*likely, *others)}.values():
        pick = _sized(spec, surroundings, options, free, beside=True)
        word, about = _tokenizer(spec, surroundings, target)
        blocked = _blocked(spec, target)
        large = bool(target is not None and target.params and spec.params > target.params * LARGE)
        rare = spec.name not in names and (large or not pick.on_disk)
        picks.append(
            replace(
                pick, tokenizer=word, tokenizer_about=about, blocked=blocked, rare=rare,
                speedup=seen.get(f"ngram+{spec.name}", seen.get(spec.name)),
                in_use=ready is not None and spec.name in (ready.drafter, ready.drafter.removeprefix("ngram+")),
            )
        )  # fmt: skip
    picks.sort(key=lambda pick: (bool(pick.blocked), pick.rare, pick.spec.kind not in WITHOUT_FILES, not pick.on_disk))
    return Picks(tuple(picks), free, total)


def expect(spec: ModelSpec, target: ModelSpec | None) -> str:
    """What its size promises, in words; "" where nothing can be said."""
    if target is None or not target.params or not spec.params or spec.kind != "model":
        return ""
    share = spec.params / target.params
    if share > LARGE:
        return f"It has {share:.0%} of the target's size, so a speed-up is unlikely."
    return f"It has 1/{1 / share:.0f} of the target's size, so a speed-up is likely where the two agree often."


def checked(found: dict[str, Any]) -> list[str]:
    """What `specchat check` found, in a few lines."""
    if found.get("refused"):
        return [f"Checked    refused: {found['refused']}"]
    lines = [f"Checked    would be used as {found['method']}"]
    if found.get("coverage"):
        shares = "  ".join(f"{part} {share:.0%}" for part, share in found["coverage"].items())
        lines.append(f"Shared     {counted(found['intersection'], 'token')}; of those in texts: {shares}")
    return lines + [str(found["reasons"][-1])] if found.get("reasons") else lines


def _sized(spec: ModelSpec, surroundings: Surroundings, options: LoadOptions, free: int, *, beside: bool) -> Pick:
    if spec.kind in WITHOUT_FILES:
        return Pick(spec, True, 0, verdict="fits", left=free)
    on_disk = surroundings.on_disk(spec)
    size = surroundings.disk_use(spec) if on_disk else 0
    need = surroundings.need(spec, options, beside=beside)
    return Pick(spec, on_disk, size, need=need, left=free - need, verdict=surroundings.verdict(need, free) if need else None)


def _blocked(spec: ModelSpec, target: ModelSpec | None) -> str:
    if spec.bound_to and (target is None or target.name not in spec.bound_to):
        return f"made for {' and '.join(spec.bound_to)} only: draft heads read the hidden states of their own target"
    return ""


def _tokenizer(spec: ModelSpec, surroundings: Surroundings, target: ModelSpec | None) -> tuple[str, str]:
    if spec.kind in WITHOUT_FILES:
        return "-", ""
    if spec.kind == "heads":
        return "own", "the target's own"
    if target is None:
        return "?", "no target is loaded"
    relation, about = surroundings.relation(target, spec)
    if relation == "same":
        return "same", f"same vocabulary: {about}"
    if relation == "other":
        return "bridge", f"another one, through the bridge: {about}"
    return "?", about


def _held(memory: Memory) -> int:
    return memory.target + memory.drafter + memory.kv


def fit_word(pick: Pick) -> str:
    """fits, tight, no room, or ?."""
    return {"fits": "fits", "tight": "tight", "no": "no room", None: "?"}[pick.verdict]


def fit_about(pick: Pick) -> str:
    """The memory in words."""
    if pick.spec.kind in WITHOUT_FILES:
        return "needs none of its own"
    if not pick.need:
        return "not known before it is here"
    if pick.left >= 0:
        return f"about {human(pick.need)}, which leaves {human(pick.left)} free"
    return f"about {human(pick.need)}, which is {human(-pick.left)} more than is free"
