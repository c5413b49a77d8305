"""Which target a set of draft heads belongs to. Heads read the hidden states of the one model that they were trained with.

An entry with `for = […]` is blocked beside every other named target and every other model of the hub. Beside a folder or a .gguf file
of the person's own, whose name says nothing, sizes decide when it is loaded.
"""

from __future__ import annotations

from engine.catalog.specs import ModelSpec
from engine.errors import EngineError


def blocked(drafter: ModelSpec, target: ModelSpec) -> str | None:
    """Why these heads do not go with this target, as one sentence; None when they may."""
    if drafter.kind != "heads" or not drafter.bound_to or target.name in drafter.bound_to or target.path is not None:
        return None
    return (
        f"{drafter.name} was trained with {' or '.join(drafter.bound_to)} and reads its hidden states, which {target.name} does not have."
    )


def require(drafter: ModelSpec, target: ModelSpec) -> None:
    """EngineError(kind="wrong_target") for heads of another target."""
    if (reason := blocked(drafter, target)) is not None:
        raise EngineError(
            reason,
            f"Choose {drafter.bound_to[0]} as target, or another drafter: `specchat models` shows which heads suit which target.",
            kind="wrong_target",
        )


def no_target(heads: ModelSpec) -> EngineError:
    """What to say where draft heads were named as the model to chat with."""
    of, hint = "", f"Name them as the drafter of the model that they were made for: `-t TARGET -d {heads.name}`."
    if heads.bound_to:
        target = heads.bound_to[0]
        of = f" for {' or '.join(heads.bound_to)}"
        hint = f"Use `-t {target} -d {heads.name}`; in the chat, /model {target} and then /draft {heads.name}."
    return EngineError(f"{heads.name} are draft heads{of}, not a model to chat with.", hint, kind="wrong_target")


def instead(heads: ModelSpec, target: ModelSpec | None) -> ModelSpec:
    """Heads that were named as the model: the drafter that is meant, where their own target is in use. Else an EngineError."""
    if target is None or target.name not in heads.bound_to:
        raise no_target(heads)
    return heads
