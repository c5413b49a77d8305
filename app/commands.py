"""What is made from the table of commands: key bindings, slash commands and their completion, the key bar, the help, the README."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from textual.binding import Binding, BindingType

from app.command_table import BY_NAME, BY_SLASH, COMMANDS, PLACES, Command, Situation, Where

__all__ = ["BY_NAME", "BY_SLASH", "COMMANDS", "PLACES", "Command", "Situation", "Where"]

NOTHING: Mapping[str, str] = MappingProxyType({})
FIRST = ("send", "draft", "model", "tokens", "compare", "bench")  # in the key bar, where not all have room
LAST = ("palette", "help")
_KEYS = {
    "slash": "/", "left_square_bracket": "[", "right_square_bracket": "]", "less_than_sign": "<", "greater_than_sign": ">",
    "space": "Space", "delete": "Del", "pageup": "PgUp", "pagedown": "PgDn", "escape": "Esc", "enter": "Enter", "tab": "Tab",
    "up": "Up", "down": "Down", "left": "Left", "right": "Right", "home": "Home", "end": "End", "plus": "+", "minus": "-",
}  # fmt: skip


def bindings(where: Where) -> list[BindingType]:
    """The key bindings of one place, each with the id by which it can be rebound. Only in the chat they go before what has the focus."""
    target = "app" if where == "app" else "screen"
    first = where in ("app", "chat", "prompt")
    return [
        Binding(command.keys, f"{target}.command('{command.name}')", command.help, show=False, priority=first, id=command.name)
        for command in COMMANDS
        if command.keys and command.bind and command.where == where
    ]


@dataclass(frozen=True, slots=True)
class Typed:
    """What the person sent: a command with its argument, or a `prompt` for the model, or an `error`."""

    command: Command | None = None
    argument: str = ""
    prompt: str = ""
    error: str = ""


def parse(text: str) -> Typed:
    """Tell commands from prompts. An unknown command is an error with the nearest name; `//` sends a literal slash."""
    if not text.startswith("/"):
        return Typed(prompt=text)
    if text.startswith("//"):
        return Typed(prompt=text[1:])
    name, *rest = text[1:].split(maxsplit=1)[:2] if text[1:].strip() and not text[1].isspace() else [""]
    if command := BY_SLASH.get(name.lower()):
        return Typed(command, rest[0].strip() if rest else "")
    near = difflib.get_close_matches(name.lower(), BY_SLASH, 1, 0.5)
    hint = f"Did you mean /{near[0]}?" if near else "/help lists the commands."
    return Typed(error=f"There is no command /{name}. {hint} To send a text that begins with a slash, write two.")


def completions(text: str, choices: Callable[[str], Iterable[tuple[str, str]]]) -> list[tuple[str, str]]:
    """What the text could become, each with a word of help. `choices(name)` are the arguments of a command."""
    if not text.startswith("/") or text.startswith("//") or "\n" in text:
        return []
    name, space, argument = text[1:].partition(" ")
    if not space:
        found = [command for slash, command in BY_SLASH.items() if slash.startswith(name.lower())]
        return [(f"/{c.slash}" + (" " if c.usage else ""), f"{c.usage}  {c.help}".strip()) for c in found]
    if command := BY_SLASH.get(name.lower()):
        wanted = argument.lower()
        return [(f"/{command.slash} {value}", about) for value, about in choices(command.name) if value.lower().startswith(wanted)]
    return []


def key_label(keys: str) -> str:
    """The first of some keys as people write it: ^N, PgUp, Esc, F1."""
    key = keys.split(",")[0]
    control, _, base = key.rpartition("+")
    base = _KEYS.get(base, base.upper() if _upper(control, base) else base if len(base) == 1 else base.capitalize())
    if control == "ctrl":
        return f"^{base}"
    return f"{control.capitalize()}+{base}" if control else base


def _upper(control: str, base: str) -> bool:
    return base[1:].isdecimal() if len(base) > 1 else control == "ctrl"


def keys_of(command: Command, rebound: Mapping[str, str]) -> str:
    """Its keys, or those that the person has given it."""
    return rebound.get(command.name, command.keys)


def key_bar(now: Situation, rebound: Mapping[str, str] = NOTHING) -> list[tuple[str, str]]:
    """Key and label of what is worth showing now in the chat, most important first."""
    shown = [command for command in COMMANDS if command.label and command.where not in PLACES and not command.when(now)]
    shown.sort(key=lambda c: FIRST.index(c.name) if c.name in FIRST else len(FIRST) + (1 + LAST.index(c.name) if c.name in LAST else 0))
    first = [("Esc", "stop")] if now.generating or now.loading else []
    return first + [(key_label(keys_of(c, rebound)), c.label) for c in shown if not (first and c.name == "send")]


def place_bar(where: Where, without: Iterable[str] = (), rebound: Mapping[str, str] = NOTHING) -> list[tuple[str, str]]:
    """Key and label of what a place beside the chat offers, except these commands."""
    shown = [c for c in COMMANDS if c.where == where and c.label and c.name not in without]
    return [(key_label(keys_of(c, rebound)), c.label) for c in shown]


def key_help(where: Where | None = None, rebound: Mapping[str, str] = NOTHING) -> list[tuple[str, str]]:
    """Keys and what they do; in the chat, or in a place beside it."""
    wanted = [c for c in COMMANDS if c.keys and (c.where == where if where else c.where not in PLACES)]
    return [(" / ".join(key_label(key) for key in keys_of(command, rebound).split(",")), command.help) for command in wanted]


def slash_help() -> list[tuple[str, str]]:
    """Slash commands and what they do."""
    return [(f"/{command.slash} {command.usage}".strip(), command.help) for command in BY_SLASH.values()]


def help_text() -> str:
    """The same as Markdown tables, for the README."""
    keys = _rows(key_help())
    slashes = "\n".join(f"| `{slash.replace('|', '/')}` | {about} |" for slash, about in slash_help())
    places = "".join(f"\n| {title} | |\n| --- | --- |\n{_rows(key_help(where))}\n" for where, title in PLACES.items())
    return (
        f"| Key | |\n| --- | --- |\n{keys}\n\n| Command | |\n| --- | --- |\n{slashes}\n\n"
        f"`//` at the start sends a text that begins with a slash.\n{places}"
    )


def _rows(help_: list[tuple[str, str]]) -> str:
    return "\n".join(f"| {key} | {about} |" for key, about in help_)
