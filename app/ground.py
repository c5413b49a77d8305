"""What a measurement on the screen starts from: the loaded target, what can be put beside it, the engine. No widgets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from app.bench import Plan
from app.beside import Check, Judge
from app.prompts import Prompt
from engine.catalog.specs import ModelSpec
from engine.client import Client
from engine.protocol import Generate, LoadOptions, Message, Ready


@dataclass(frozen=True, slots=True)
class Ground:
    """Nothing is loaded again: a measurement only swaps drafters, and the chat puts its own back afterwards."""

    client: Client
    target: ModelSpec
    ready: Ready
    load: LoadOptions
    drafters: tuple[ModelSpec, ...]  # on this machine and made for the target; not plain decoding
    drafter: ModelSpec  # the chat's own
    prompt: str  # what the person would like to compare
    template: Generate  # system prompt, rule, stop strings; without a prompt
    history: tuple[Message, ...] = ()  # the turns before the prompt that is compared
    method: str = "auto"
    sets: tuple[str, ...] = ()  # where only some prompt sets can be answered
    demo: bool = False  # the numbers are recorded ones
    others: tuple[ModelSpec, ...] = ()  # on this machine, made for no target in particular; a check says whether they are sound
    check: Check | None = None  # that check
    verdicts: dict[str, str] = field(default_factory=dict)  # of the others, as far as it is known

    def judge(self) -> Judge:
        """Looks for further drafters, in the background."""
        assert self.check is not None
        return Judge(self.check, self.verdicts)

    def plan(self, prompts: tuple[Prompt, ...], drafters: tuple[ModelSpec, ...], tokens: int, repeat: int, *, bench: bool) -> Plan:
        """Greedy. A benchmark runs plain decoding at the end, too, and leaves the chat's history out."""
        history = () if bench else self.history
        greedy = replace(self.template.sampling, temperature=0.0)
        template = replace(self.template, sampling=greedy, max_tokens=tokens, messages=(*self.template.messages, *history))
        return Plan(self.target, drafters, prompts, template, self.load, self.method, repeat, seed=0, plain_again=bench, ready=self.ready)
