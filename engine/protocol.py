"""What the screen and the engine say to each other: frozen dataclasses, no torch, no textual.

Commands go in, events come out; nothing else crosses. The same messages drive the screen, the command line, the tests and a
replayed trace. Texts in events are exact: whoever shows them on a terminal makes them safe first (`app.terminal.for_terminal`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.catalog.specs import ModelSpec

Origin = Literal["kept", "correction", "bonus", "plain"]
FinishReason = Literal["stop", "length", "context", "cancelled"]
Verify = Literal["match", "ratio"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """The person's wishes; `None` means the model's own generation_config, else 0.7 / 0.95 / 0 / 0 / 1."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to put the models on the machine; `auto` picks by capability."""

    device: str = "auto"  # auto | cpu | cuda[:n] | mps
    draft_device: str = "auto"  # auto = as the target
    quant: str = "auto"  # auto | nf4 | int8 | bf16 | fp16 | fp32
    head: str = "auto"  # auto | nf4 | int8 | bf16 | fp16 | fp32
    draft_quant: str = "auto"
    context: int | None = None  # tokens; None = the model's own limit, within memory
    settle: bool = False  # be ready only when nothing is left to be done beside the first replies: for whoever measures


# --- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """Load a target, and a drafter beside it. Answers: Loading*, Ready | Failed."""

    target: ModelSpec
    drafter: ModelSpec  # kind none, ngram, auto, model or heads
    options: LoadOptions = field(default_factory=LoadOptions)
    method: str = "auto"


@dataclass(frozen=True, slots=True)
class SwapDrafter:
    """Put another drafter beside the loaded target, between turns or during a reply. Answers: Loading*, Ready | Failed."""

    drafter: ModelSpec
    method: str = "auto"


@dataclass(frozen=True, slots=True)
class Generate:
    """Write one reply. Answers: Prefill*, Step*, Done | Failed, each with the same `reply` number."""

    reply: int
    messages: tuple[Message, ...] = ()
    raw: str | None = None  # a prompt taken as it is, instead of messages: no chat template
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0  # 63-bit reply seed, already mixed with turn and version
    max_tokens: int | None = None  # None = to the end of the context
    stop: tuple[str, ...] = ()
    k: int | None = None  # fixed draft length, controller off; None = the controller decides
    verify: Verify = "match"
    strict: bool = False  # remove even near-ties where the scheme is not row-invariant
    trim: bool = False  # drop the oldest turns when the prompt is too long, instead of failing
    carry_on: bool = False  # the last message is the assistant's: continue it, counting tokens on from `offset`
    offset: int = 0  # index of the first new token in the reply (noise counter)
    think: bool | None = None  # tell the chat template to let the model think aloud, or not; None says nothing


@dataclass(frozen=True, slots=True)
class Unload:
    """Free the models. Answers: Unloaded."""


@dataclass(frozen=True, slots=True)
class Weigh:
    """How near were some tokens to each other for the target, behind a prompt and a reply's first tokens? Answers: Weighed | Failed."""

    prompt: Generate
    ids: tuple[int, ...]  # the reply so far
    tokens: tuple[int, ...]  # the candidates for its next token


@dataclass(frozen=True, slots=True)
class Look:
    """What would the target read for this prompt? Nothing is computed. Answers: Looked | Failed."""

    prompt: Generate


Command = Load | SwapDrafter | Generate | Weigh | Look | Unload


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of a load. `stage` is a short text for people; done/total in `unit`, total 0 when unknown."""

    stage: str
    done: int = 0
    total: int = 0
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `device_used`/`device_total` are the whole device's, 0 when unknown."""

    target: int = 0
    drafter: int = 0
    kv: int = 0
    device_used: int = 0
    device_total: int = 0
    recorded: int = 0  # passes recorded on a card (CUDA graphs), of target and drafter together


@dataclass(frozen=True, slots=True)
class Ready:
    """What is loaded now."""

    target: str
    drafter: str  # "none" when there is none
    method: str  # none|ngram|model|slem|tli|pf|slrs|medusa|hydra|hydra++|eagle1|eagle2|eagle3|gumiho
    device: str
    quant: str
    head: str
    draft_quant: str
    context: int  # tokens
    sampling: Sampling  # the model's defaults, every field set
    exact: bool  # True: identical bit for bit at any width; False: up to near-ties without strict
    memory: Memory
    notes: tuple[str, ...] = ()  # warnings, one sentence each
    load_s: float = 0.0
    import_s: float = 0.0
    opens_thoughts: bool = False  # the chat template itself begins a reply inside thoughts, so that it has an end tag alone


@dataclass(frozen=True, slots=True)
class Unloaded:
    """The models are gone."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Reading the prompt: `done` of `total` prompt tokens are in the cache, `reused` of them were there before."""

    reply: int
    done: int
    total: int
    reused: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The smallest piece of clean text and the tokens that made it; its class is that of its last token."""

    text: str
    origin: Origin
    token_ids: tuple[int, ...]
    position: int = 0  # place in its draft, from 1; 0 for tokens that are the target's own
    step: int = 0  # number of the step that emitted the last token, from 1


@dataclass(frozen=True, slots=True)
class Step:
    """One verifying forward pass and the drafting before it. Times in seconds."""

    reply: int
    index: int  # from 1
    segments: tuple[Segment, ...]  # may be empty while a character or a stop string is held back
    emitted: int  # tokens emitted, without a stop id
    drafted: int  # depth of the verified draft
    accepted: int  # drafted tokens kept, a kept stop id included
    nodes: int  # drafted nodes (= drafted for a chain)
    draft_s: float
    verify_s: float
    bridge_s: float
    other_s: float
    at_s: float  # decode clock at the end of this step
    note: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the person may want to know: the controller's decisions, a fallback. One sentence."""

    text: str
    reply: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The reply has ended. `text` is exact and equals the segments of all steps and `tail`, joined."""

    reply: int
    finish_reason: FinishReason
    text: str
    token_ids: tuple[int, ...]  # without the stop id
    stop_id: int | None  # the stop id that ended it, if one did
    seed: int
    prompt_tokens: int
    reused_tokens: int
    prefill_s: float
    sampling: Sampling  # as used, every field set
    plain_s: float | None  # seconds of one plain step on this target at this length, when measured
    memory: Memory
    tail: tuple[Segment, ...] = ()  # pieces that were still held back (part of a character, of a stop string) when it ended
    trimmed: int = 0  # messages dropped from the front, after `trim`
    method: str = "none"
    drafter: str = "none"


@dataclass(frozen=True, slots=True)
class Weighed:
    """The target's logits of the candidates, before any filter; as many as there were candidates, or none where nobody knows them."""

    logits: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A command failed; what was loaded before stays usable unless `lost` names it."""

    message: str
    hint: str
    kind: str
    detail: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    reply: int | None = None
    lost: tuple[str, ...] = ()  # "target", "drafter"


@dataclass(frozen=True, slots=True)
class Looked:
    """A prompt as the target reads it. `text` is exact, special tokens included."""

    text: str
    tokens: int
    reused: int  # of these tokens are in the cache already
    context: int  # tokens that fit
    template: str  # whose chat template made it: "model", "models.toml", or "none": plain role labels


Event = Loading | Ready | Unloaded | Prefill | Step | Notice | Done | Weighed | Looked | Failed
