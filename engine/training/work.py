"""The folder of one training and what it remembers: which target, which data, how long it took so far. No torch.

In the folder `work` of OUT, `plan.json` says what is trained; `data`, `judge` and `report` hold shards, beside them lie the checkpoint and
the best weights.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from engine.catalog import disk
from engine.errors import EngineError
from engine.training import files
from engine.training.protocol import HOURS, Plan

FOLDER = "work"
CHECKPOINT, BEST = "checkpoint.safetensors", "best.safetensors"
FREE = ("kind", "heads", "shortlist", "precision")  # … but for heads that are trained again from the same data
FIXED = ("kind", "heads", "shortlist", "prompts", "seed", "features", "precision", "target", "target_hash", "quant", "head")
DATA_SHARE = 0.45  # of the time, when no number of tokens was given
REST_SHARE = 0.07  # for writing and measuring at the end
END_S = 5.0


@dataclass(slots=True)
class Memory:
    """What is remembered between two runs."""

    fixed: dict[str, Any] = field(default_factory=dict)  # what must not change
    seconds: float = 0.0  # spent so far
    texts: list[int] = field(default_factory=list)  # numbers of the training texts, once they are complete
    ids: list[int] = field(default_factory=list)  # of the shortlist


class Work:
    """See the module."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.folder = plan, plan.out / FOLDER
        self._file = self.folder / "plan.json"
        found = files.read_json(self._file)
        if found is not None and not plan.resume:
            raise EngineError(
                f"There is a training in {plan.out} already.",
                "Go on with it: the same command with --resume. Or choose another --out.",
                kind="exists",
            )
        if found is None and plan.resume:
            raise EngineError(f"There is no training in {plan.out} to go on with.", "Leave out --resume to begin one.", kind="config")
        try:
            self.memory = Memory(**found) if found is not None else Memory()
        except TypeError as error:
            raise EngineError(f"{self._file} is not one of this version.", "Choose another --out.", kind="config") from error
        self._begun = monotonic()

    def part(self, name: str) -> Path:
        """The folder of the shards of one part."""
        folder = self.folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.cannot_write(folder, error) from error
        for part in folder.glob(f"*{files.PART}"):  # of a run that was killed while writing
            with contextlib.suppress(OSError):
                part.unlink()
        return folder

    def settle(self, target: dict[str, Any], features: str, precision: str) -> None:
        """Remember what this training is, or see that it is still the same. EngineError names what differs."""
        plan = asdict(self.plan)
        now = {key: plan[key] for key in ("kind", "heads", "shortlist", "seed")} | {"prompts": list(self.plan.prompts)}
        now |= {"features": features, "precision": precision} | {key: target[key] for key in ("target", "target_hash", "quant", "head")}
        if not self.memory.fixed:
            self.memory.fixed = now
            self.save()
            return
        if self.plan.again:
            self._restart({key: now[key] for key in FREE})
        for key in FIXED:
            if self.memory.fixed.get(key) != now[key]:
                was = "others" if key == "prompts" else repr(self.memory.fixed.get(key))
                raise EngineError(
                    f"The training in {self.plan.out} was begun with another {key.replace('_', ' ')} ({was}).",
                    "Give the same options as then, or choose another --out.",
                    kind="wrong_target" if key == "target_hash" else "config",
                )

    def _restart(self, changed: dict[str, Any]) -> None:
        """Forget the heads and keep the data; more of it is asked for only where a number of tokens was given."""
        for name in (CHECKPOINT, BEST):
            (self.folder / name).unlink(missing_ok=True)
        memory = self.memory
        memory.fixed |= changed
        memory.ids, memory.seconds, self._begun = [], 0.0, monotonic()
        if self.plan.tokens is not None:
            memory.texts = []
        self.save()

    @property
    def seconds(self) -> float:
        """Time spent so far, earlier runs included."""
        return self.memory.seconds + monotonic() - self._begun

    @property
    def limit_s(self) -> float | None:
        """Time for everything; None where only the amount of data bounds it."""
        if self.plan.hours is None and self.plan.tokens is not None:
            return None
        return 3600.0 * (HOURS if self.plan.hours is None else self.plan.hours)

    @property
    def data_until_s(self) -> float | None:
        """When no more prompts are asked."""
        return None if self.limit_s is None else DATA_SHARE * self.limit_s

    @property
    def training_s(self) -> float | None:
        """Time that is left for the heads."""
        if self.limit_s is None:
            return None
        return max((1 - REST_SHARE) * self.limit_s - self.seconds, END_S)

    def save(self) -> None:
        """Write what is remembered."""
        files.write_json(self._file, asdict(self.memory) | {"seconds": self.seconds})

    @property
    def bytes(self) -> int:
        """Size of the folder."""
        return disk.size(self.folder)
