"""Puts a small model with another tokenizer beside a target: is the pair sound, by which methods does it draft, what is to be expected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.bridge import calibration, choice
from engine.bridge.check import expectations, size_reason, vocabulary_size
from engine.bridge.codec import Codec
from engine.bridge.maps import VocabularyMap, vocabulary_map
from engine.catalog.specs import ModelSpec
from engine.decoder.target import LeanTarget
from engine.decoder.tokenizer import Tokenizer
from engine.drafters.companion import Companion
from engine.drafters.cross import Cross, Method
from engine.drafters.slem import Slem
from engine.drafters.slrs import Slrs
from engine.drafters.tli import Tli
from engine.errors import EngineError
from engine.speculation.draft import Question
from engine.speculation.sampling import Filters

METHODS = ("slem", "tli", "pf", "slrs")
SMALL_VOCABULARY = 4096  # up to here slrs is quick enough
NO_TEMPLATE = "has no chat template: it reads the chat with plain role labels, and may guess worse for it."
TARGETS_OWN = "Choose a drafter of the same family, or ngram."


class Pair:
    """Target and drafter by their tokenizers, before any weight of the drafter is read. Raises EngineError where they are not sound."""

    def __init__(self, target_spec: ModelSpec, target: Tokenizer, rows: int, spec: ModelSpec, tokenizer: Tokenizer, path: Path) -> None:
        self.spec, self._target_spec = spec, target_spec
        self.tokenizer = replace(tokenizer, name=spec.name)
        self.target = Codec(replace(target, name=target_spec.name), rows)
        self.drafter = Codec(self.tokenizer, vocabulary_size(path))
        self.choice = choice.choose(self.target, self.drafter)
        if self.choice.refused is not None:
            raise EngineError(self.choice.refused, TARGETS_OWN, kind="vocabulary")

    def drafts(self, method: str, runner: LeanTarget, temperature: float) -> Cross:
        """The drafter. `temperature`: of a reply without wishes of its own."""
        if len(self.drafter.table.tokens) != runner.vocab_size:
            self.drafter = Codec(self.tokenizer, runner.vocab_size)
        maps = vocabulary_map(self.target, self.drafter)
        greedy = made(self.choice.greedy if method == "auto" else method, maps)
        sampled = made(self.choice.sampled, maps) if method == "auto" else greedy
        side = Companion(runner, self._render, self.target, self.drafter)
        return Cross(self.spec.name, side, greedy, sampled, Filters(temperature))

    def _render(self, question: Question) -> list[int]:
        if question.raw is not None:
            return self.tokenizer.encode(question.raw, special=True)
        return self.tokenizer.render(question.messages, question.carry_on)

    def notes(self, method: str, target_path: Path | None, path: Path, runner: LeanTarget, context: int) -> list[str]:
        """What the person should know: the pair is sound, but perhaps not wise."""
        maps = vocabulary_map(self.target, self.drafter)
        whole = method == "tli"
        found = {part: calibration.shares(self.target, self.drafter, maps, calibration.text(part)) for part in calibration.PARTS}
        shares = {part: coverage if whole else pieces for part, (coverage, pieces) in found.items()}
        notes = [] if self.tokenizer.has_template else [f"{self.spec.name} {NO_TEMPLATE}"]
        notes += expectations(self.target, self.drafter, maps, shares, whole)
        large = size_reason(self._target_spec, target_path, self.spec, path) if target_path is not None else None
        notes += [large] if large is not None else []
        if method == "slrs" and runner.vocab_size > SMALL_VOCABULARY:
            notes.append(f"slrs is made for small vocabularies: with {self.spec.name}'s {runner.vocab_size:,} tokens it will hardly pay.")
        if runner.context < context:
            notes.append(f"{self.spec.name} reads {runner.context:,} tokens at most; it rests in longer conversations.")
        return notes


def made(method: str, maps: VocabularyMap) -> Method:
    """A method by its name."""
    match method:
        case "slem":
            return Slem(maps.ends)
        case "tli":
            return Tli("tli", maps)
        case "pf":
            return Tli("pf", maps)
        case "slrs":
            return Slrs(maps)
    raise AssertionError(method)
