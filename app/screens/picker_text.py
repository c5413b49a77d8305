"""What the rows of the pickers say, and the lines below them. Pure, so that it can be tested."""

from __future__ import annotations

from app.picks import ABOUT, WORDS, Pick, expect, fit_about, fit_word
from app.sizes import by_source, short
from app.surroundings import WITHOUT_FILES
from app.terminal import one_line
from app.trial import Trial
from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec
from engine.words import counted

NARROW = 78  # columns below which kind and size, or the context, are left out
ROOMY = 100  # columns from which names and results are written out
LICENCE = 100  # columns from which there is room for the licence


def facts(blocked: int, memory: str, width: int) -> str:
    """What stands beside the title: how many are hidden since they cannot be used, and the memory where there is room."""
    hidden = f"{blocked} blocked (b)" if blocked else ""
    return " · ".join(filter(None, (hidden, memory if width >= NARROW or not hidden else "")))


def headings(width: int, *, drafters: bool) -> list[str]:
    """The heads of the columns for this width."""
    if drafters:
        words = "TOKENIZER" if width >= ROOMY else "VOCAB"
        return ["NAME", *(["KIND", "SIZE"] if width >= NARROW else []), words, "MEMORY", "SEEN HERE"]
    context = ["CONTEXT"] if width >= NARROW else []
    return ["NAME", *(["LICENCE"] if width >= LICENCE else []), "SIZE", "MEMORY", *context, "HERE"]


def drafter_cells(pick: Pick, width: int, trial: Trial | None) -> list[str]:
    """A row of the list of drafters."""
    spec = pick.spec
    kind = [WORDS[spec.kind], _size(pick)] if width >= NARROW else []
    if pick.blocked:
        seen = "blocked"
    elif trial is not None:
        seen = trial.words if width >= ROOMY else trial.short
    elif pick.speedup:
        seen = f"{pick.speedup:.2f}x"
    else:
        seen = "1.00x" if spec.kind == "none" else "not tried" if pick.on_disk else "to download"
    return [_name(pick, width), *kind, pick.tokenizer, fit_word(pick), seen]


def target_cells(pick: Pick, width: int) -> list[str]:
    """A row of the list of targets."""
    spec = pick.spec
    licence = [one_line(spec.licence, 20)] if width >= LICENCE else []
    context = [f"{spec.context:,}" if spec.context else "-"] if width >= NARROW else []
    return [_name(pick, width), *licence, _size(pick), fit_word(pick), *context, "here" if pick.on_disk else "to download"]


def lines(pick: Pick, target: ModelSpec | None, trial: Trial | None, checked: list[str], *, drafters: bool) -> list[str]:
    """What is known of the chosen one; empty lines are to be left out."""
    spec = pick.spec
    tried = [f"Trial      {trial.words}, kept {trial.kept:.0%}, {counted(trial.tokens, 'token')}: too few to be sure"] if trial else []
    if spec.kind in WITHOUT_FILES:
        return [ABOUT[spec.kind], *tried]
    where = f"takes {human(pick.size)} on disk" if pick.on_disk else f"to download: {by_source(spec)}" if by_source(spec) else "to download"
    parts = [spec.name, f"{spec.params:g} B" if spec.params else "", where, spec.licence, "must be agreed to" if spec.gated else ""]
    found = [" · ".join(part for part in parts if part)]
    found += [f"Cannot be used: {pick.blocked}."] if pick.blocked else []
    if drafters and not checked:
        found += [f"Tokenizer  {pick.tokenizer_about}"] if pick.tokenizer_about else []
    found += [f"Memory     {fit_about(pick)}"]
    if drafters and not checked:
        promise = expect(spec, target)
        found += [f"Expect     {promise}"] if promise else []
    return [*found, *tried, *(checked or [spec.note])]


def _name(pick: Pick, width: int) -> str:
    sign = "> " if pick.in_use else "x " if pick.blocked else "  "
    return sign + one_line(pick.spec.name, 32 if width >= ROOMY else 22 if width >= NARROW else 18)


def _size(pick: Pick) -> str:
    if pick.spec.kind in WITHOUT_FILES:
        return "-"
    return human(pick.size) if pick.on_disk else short(pick.spec)
