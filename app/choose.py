"""Which models a command means: from the options, else the last used, else the default for this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.options import Options
from app.state import State, load_state, save_state
from engine.catalog import bindings, catalog, stored
from engine.catalog.catalog import Catalog
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

if TYPE_CHECKING:
    from app.chat import ChatOptions


@dataclass(frozen=True, slots=True)
class Choice:
    """The models to load, and whether a person named the target just now."""

    target: ModelSpec
    drafter: ModelSpec
    named: bool


def choose(options: Options, models: Catalog) -> Choice:
    """Target and drafter; raises for names that mean nothing."""
    drafter = models.drafter(options.drafter)
    named = models.target(options.target) if options.target is not None else None
    target = named or _last_target(models) or _default_target(models)
    bindings.require(drafter, target)  # before anything is downloaded
    return Choice(target, drafter, named is not None)


def heads_as_drafter(options: Options, models: Catalog) -> Options:
    """`-t HEADS` means `-d HEADS` where the target that is used without `-t` is their own. Raises beside another one."""
    heads = models.heads(options.target) if options.target is not None else None
    if heads is None or options.target is None:
        return options
    target = _last_target(models) or _default_target(models)
    bindings.instead(heads, target if options.drafter == "auto" else None)  # not in the place of a drafter that was named
    return replace(options, target=None, drafter=options.target)


def _last_target(models: Catalog) -> ModelSpec | None:
    last = load_state().last_target
    try:
        return models.target(last) if last else None
    except EngineError:  # its entry or file is gone since
        return None


def _default_target(models: Catalog) -> ModelSpec:
    """What suits this machine. To look at it takes time, which a start with a known target does not spend."""
    from engine.catalog import hardware

    return models.default_target(hardware.probe())


def remember(options: Options, choice: Choice) -> str | None:
    """Keep what was named for the next start; returns a warning where that failed."""
    before = load_state()
    target = _reference(choice.target, options.target) if options.target is not None else before.last_target
    drafter = _reference(choice.drafter, options.drafter) if options.drafter != "auto" else before.last_drafter
    after = State(target, drafter)
    return save_state(after) if after != before else None


def _reference(spec: ModelSpec, said: str) -> str:
    """What finds this model again from any folder."""
    return said if spec.path is None or spec.name == said else str(spec.path.absolute())


def chat_options(options: Options, resume: str | None = None) -> ChatOptions:
    """The same options for the screen. A broken models.toml of the person's own costs its entries, not the chat."""
    from app.chat import ChatOptions
    from app.config import load_config

    options = load_config().over(options, chat=resume is None)
    notes: tuple[str, ...] = ()
    try:
        models = catalog.load()
    except EngineError as error:
        if error.kind not in ("config", "unwritable"):
            raise
        models, notes = catalog.builtin(), (str(error),)
    options = heads_as_drafter(options, models)
    drafter = models.drafter(options.drafter)
    target = models.target(options.target) if options.target is not None else _there(models)
    return ChatOptions(
        target=target,
        drafter=drafter,
        method=options.method,
        load=options.load_options(),
        sampling=options.sampling(),
        seed=options.seed,
        k=options.k,
        verify=options.verify,
        strict=options.strict,
        max_tokens=options.max_tokens,
        stop=tuple(options.stop or ()),
        system=options.system,
        offline=options.offline,
        notes=notes,
        resume=resume,
    )


def _there(models: Catalog) -> ModelSpec | None:
    """The last used target, else the default, if it is on disk; else none, so that the first screen offers some."""
    last = _last_target(models)
    if last is not None and stored.locate(last) is not None:
        return last
    default = _default_target(models)
    return default if stored.locate(default) is not None else None
