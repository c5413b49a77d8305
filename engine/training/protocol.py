"""What the command line and the training thread say to each other: frozen dataclasses, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.catalog.specs import ModelSpec
from engine.protocol import Failed, Loading, LoadOptions

Kind = Literal["hydra++", "gumiho", "medusa"]
Features = Literal["auto", "bf16", "int8"]
Precision = Literal["auto", "fp32", "bf16"]
KINDS: tuple[Kind, ...] = ("hydra++", "gumiho", "medusa")
HOURS = 1.0  # when nobody says


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train. `hours` bounds everything together, `tokens` the training data; with neither it is one hour."""

    target: ModelSpec
    out: Path  # the folder of the heads; the work lies in a folder inside it
    kind: Kind = "hydra++"
    name: str = ""  # under which models.toml will know them
    options: LoadOptions = field(default_factory=LoadOptions)
    hours: float | None = None
    tokens: int | None = None
    epochs: int | None = None
    heads: int = 3  # tokens that are drafted in a row
    shortlist: int | None = None  # tokens; 0 = the whole vocabulary, None = by the device
    prompts: tuple[str, ...] = ()  # of the person's own
    features: Features = "auto"
    precision: Precision = "auto"
    lanes: int = 32  # replies that the target writes at once
    seed: int = 1
    resume: bool = False
    again: bool = False  # with `resume`: the heads are trained anew, from the data that are there
    register: bool = True  # write an entry into the person's models.toml


@dataclass(frozen=True, slots=True)
class Stage:
    """A new part of the work begins; a short text."""

    text: str


@dataclass(frozen=True, slots=True)
class Answering:
    """The target writes training data: tokens of finished replies so far, of how many (0: as many as the time allows)."""

    done: int
    wanted: int
    texts: int
    tok_per_s: float
    eta_s: float


@dataclass(frozen=True, slots=True)
class Learning:
    """One or more training steps."""

    step: int
    steps: int
    epoch: float  # passes over the data so far
    loss: float  # mean since the last of these
    rate: float  # learning rate
    tok_per_s: float
    eta_s: float


@dataclass(frozen=True, slots=True)
class Judged:
    """The heads were tried on held-out topics. `agreement[k]`: how often drafted token k + 1 is right when all before it are given."""

    step: int
    tau: float
    agreement: tuple[float, ...]
    speedup: float  # expected, from the measured costs; 0 when not known
    best: bool  # no earlier state was better
    patience: int  # trials without a better one until training ends; 0 = it ends


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence for the person."""

    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Finished heads beside their target, on prompts of topics that were never trained on nor judged by, greedy."""

    tau: float
    kept: tuple[float, ...]  # by position, as in `engine.stats`
    tokens: int
    same_text: bool  # as without heads
    speedup: float  # expected on this machine
    spread: float = 0.0  # half of tau's 95 % interval, by how much the texts differ


@dataclass(frozen=True, slots=True)
class Trained:
    """Everything is written."""

    out: Path
    name: str  # in models.toml, "" where it is not there
    kind: Kind
    measured: Measured
    tokens: int  # of training data
    steps: int
    seconds: float
    work_bytes: int  # of training data and checkpoints, which can be deleted


@dataclass(frozen=True, slots=True)
class Stopped:
    """The person stopped it; what was done is on disk."""

    out: Path


Progress = Stage | Loading | Answering | Learning | Judged | Remark
Event = Progress | Trained | Stopped | Failed
