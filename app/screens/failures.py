"""From a failure to what a person sees: a sentence, a hint, and the choices that make sense. Pure, so that it can be tested."""

from __future__ import annotations

from app.terminal import one_line
from app.widgets.panel import Choice, Panel
from engine.catalog.specs import ModelSpec
from engine.protocol import Failed, Generate, Load, SwapDrafter
from engine.words import counted

SHORT_CONTEXT = 4096
NAMED, LOOKED_AT = 40, 400  # characters of a message that names it, and of those that may be blanks among others
LEAVE = Choice("escape", "Leave it", "leave")


def load_panel(event: Failed, command: Load | SwapDrafter | None, *, offline: bool) -> Panel:
    """A load or a swap failed."""
    ways: list[tuple[str, str]] = []
    if isinstance(command, Load) and event.lost == ("drafter",):
        return Panel(event.message, "The model itself is loaded, without a drafter.", event.hint, kind="error")
    if event.kind == "memory" and isinstance(command, Load):
        if command.drafter.kind not in ("none", "ngram"):
            ways.append(("Load it without a drafter", "no_drafter"))
        if command.options.context is None or command.options.context > SHORT_CONTEXT:
            ways.append((f"Load it with a context of {SHORT_CONTEXT:,} tokens", "short_context"))
        if "nf4" not in (command.options.quant, command.target.quant):
            ways.append(("Load it in 4 bits", "four_bits"))
        ways.append(("Choose another model", "model"))
    if event.kind == "missing_weights" and command is not None and not offline and _can_pull(command):
        ways.append(("Download what is missing", "pull"))
    if isinstance(command, SwapDrafter) and event.kind in ("memory", "vocabulary"):
        ways.append(("Use the n-gram look-up, which needs no model", "ngram"))
        ways.append(("Choose another drafter", "draft"))
    return _panel(event, ways)


def reply_panel(event: Failed, command: Generate | None, *, drafting: bool) -> Panel:
    """A reply failed."""
    if event.kind == "too_long":
        return _too_long(event, command)
    ways = [("Go on without a drafter", "plain")] if event.kind == "memory" and drafting else []
    return _panel(event, ways)


def _panel(event: Failed, ways: list[tuple[str, str]]) -> Panel:
    choices = tuple(Choice(str(n), label, name) for n, (label, name) in enumerate(ways, 1))
    short = event.detail if event.detail and "\n" not in event.detail and len(event.detail) < 200 else ""
    return Panel(event.message, short, event.hint, (*choices, LEAVE) if choices else (), kind="error")


def _too_long(event: Failed, command: Generate | None) -> Panel:
    numbers = {name: int(value) for name, value in event.numbers.items()}
    needed, limit, droppable = (numbers.get(name, 0) for name in ("needed", "limit", "droppable"))
    text = f"It needs {counted(needed, 'token')}; the context holds {limit:,}." if needed and limit else ""
    if droppable <= 0:
        return Panel(event.message, text, event.hint, kind="error")
    what = "the oldest message" if droppable == 1 else f"the {droppable} oldest messages"
    choices = (Choice("y", "Yes, drop and send", "trim"), Choice("n", "No, keep the text in the box", "refuse"))
    sent = [message for message in command.messages if message.role != "system"] if command is not None else []
    if droppable < len(sent):
        text += f"\nThe first to go: {one_line(sent[0].content[:LOOKED_AT], NAMED)}"
    return Panel(event.message, text.lstrip("\n"), f"Drop {what} and send?", choices, kind="error")


def _can_pull(command: Load | SwapDrafter) -> bool:
    specs: list[ModelSpec] = [command.drafter, *([command.target] if isinstance(command, Load) else [])]
    return any(spec.repo or spec.mirror for spec in specs)
