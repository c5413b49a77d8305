"""The one table of what a person can set and keep: names in config.toml, what they may be, and words for the settings screen.

Those of `chat` and `model` have the names of the command line's options; what is said there goes before what is kept here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["choice", "number", "whole", "flag", "text"]
Counts = Literal["from the next reply on", "from the next load on", "at once"]
Value = str | float | int | bool
QUANTS = ("auto", "nf4", "int8", "bf16", "fp16", "fp32")
METHODS = (
    "auto", "none", "ngram", "model", "slem", "tli", "pf", "slrs", "medusa", "hydra", "hydra++", "eagle1", "eagle2", "eagle3", "gumiho",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of config.toml. Without one the default counts: what `unset` says."""

    table: str
    name: str
    help: str
    kind: Kind
    counts: Counts
    unset: str  # the default in words
    choices: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    step: float = 1.0  # of the arrow keys
    start: float = 0.0  # where they begin

    @property
    def path(self) -> str:
        """table.name."""
        return f"{self.table}.{self.name}"

    def problem(self, value: object) -> str:
        """Why a value cannot be taken, as a clause; "" when it can."""
        if self.kind == "flag":
            return "" if isinstance(value, bool) else "must be true or false"
        if self.kind == "choice":
            if not self.choices:  # known only on the screen
                return "" if isinstance(value, str) else "must be a name in quotes"
            return "" if value in self.choices else f"must be one of {', '.join(self.choices)}"
        if self.kind == "text":
            return "" if isinstance(value, str) and value.isprintable() else "must be a text in quotes, on one line"
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "whole" else (int, float)):
            return "must be a whole number" if self.kind == "whole" else "must be a number"
        return "" if self.least <= value <= self.most and math.isfinite(value) else f"must be {self._range()}"

    def read(self, text: str) -> Value:
        """A value out of what a person wrote. ValueError with a sentence when it is none."""
        text = text.strip()
        value: Value = text
        try:
            if self.kind == "flag":
                value = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}[text.lower()]
            elif self.kind == "whole":
                value = int(text)
            elif self.kind == "number":
                value = float(text)
        except (KeyError, ValueError):
            value = f"{text}?"
        if problem := self.problem(value):
            raise ValueError(f"{self.name} {problem}.")
        return value

    def _range(self) -> str:
        if math.isinf(self.most):
            return f"{self.least:g} or more"
        return f"from {self.least:g} to {self.most:g}"


REPLY: Counts = "from the next reply on"
LOAD: Counts = "from the next load on"
OWN = "the model's own"
SETTINGS: tuple[Setting, ...] = (
    Setting("chat", "temp", "Temperature; 0 takes the likeliest token", "number", REPLY, OWN, least=0, most=100, step=0.1, start=0.7),
    Setting("chat", "top_p", "Keep the likeliest tokens up to this share", "number", REPLY, OWN, least=0.01, most=1, step=0.05, start=0.95),
    Setting("chat", "top_k", "Keep the N likeliest tokens; 0 keeps all", "whole", REPLY, OWN, least=0, most=1_000_000, step=10, start=40),
    Setting("chat", "min_p", "Drop tokens below this share of the likeliest", "number", REPLY, OWN, least=0, most=1, step=0.05, start=0.05),
    Setting("chat", "repeat_penalty", "Above 1 makes repetition rarer", "number", REPLY, OWN, least=0.01, most=100, step=0.05, start=1.1),
    Setting("chat", "seed", "Same seed, same text", "whole", REPLY, "a fresh one for each reply", least=0, most=2**63 - 1, start=1),
    Setting("chat", "max_tokens", "Longest reply in tokens", "whole", REPLY, "the context's end", least=1, most=10**7, step=128, start=512),
    Setting("chat", "k", "Always draft N tokens per step", "whole", REPLY, "decided live", least=0, most=64, start=4),
    Setting("chat", "system", "System prompt of new chats", "text", REPLY, "none"),
    Setting("chat", "verify", "match: a seed gives the same text with any drafter; ratio: the papers' own rule", "choice", REPLY, "match",
            ("match", "ratio")),
    Setting("chat", "strict", "Remove even floating-point near-ties; slower on some devices", "flag", REPLY, "off"),
    Setting("model", "quant", "Weights of the target", "choice", LOAD, "auto", QUANTS),
    Setting("model", "head", "Weights of the target's output layer", "choice", LOAD, "auto", QUANTS),
    Setting("model", "draft_quant", "Weights of the drafter", "choice", LOAD, "auto", QUANTS),
    Setting("model", "context", "Longest context in tokens", "whole", LOAD, OWN, least=1, most=10**7, step=1024, start=8192),
    Setting("model", "device", "Where the target runs", "choice", LOAD, "auto", ("auto", "cpu", "cuda", "mps")),
    Setting("model", "draft_device", "Where the drafter runs", "choice", LOAD, "as the target", ("auto", "cpu", "cuda", "mps")),
    Setting("model", "method", "How the drafter is used", "choice", LOAD, "what is sound", METHODS),
    Setting("screen", "theme", "Colours", "choice", "at once", "textual-dark"),
    Setting("screen", "numbers", "The panel of numbers, one line of them, or none", "choice", "at once", "the panel where there is room",
            ("off", "line", "full")),
    Setting("screen", "tokens", "Begin with the token view", "flag", "at once", "off"),
    Setting("screen", "follow", "What is shown of a reply under way: its end, its start, or nothing new", "choice", "at once", "its end",
            ("end", "start", "off")),
    Setting("screen", "mouse", "Let the program have the mouse; off leaves it to the terminal", "flag", "at once", "on"),
)  # fmt: skip
BY_PATH = {setting.path: setting for setting in SETTINGS}
TABLES = ("chat", "model", "screen")


def shown(setting: Setting, value: Value | None) -> str:
    """A value for people."""
    if value is None:
        return setting.unset
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
