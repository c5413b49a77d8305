"""The one table of commands. It feeds key bindings, slash commands and their completion, the palette, the key bar and the help.

A command is carried out by the method `do_NAME(argument)` of the screen, whatever way it was called.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding, BindingType

Where = Literal["app", "chat", "prompt", "steps"]
PLACES: dict[Where, str] = {  # titles of the places beside the chat
    "steps": "In the step inspector",
}


@dataclass(frozen=True, slots=True)
class Situation:
    """What commands are possible depends on."""

    ready: bool = False  # a target is loaded
    generating: bool = False
    loading: bool = False
    turns: int = 0
    text: bool = False  # some reply has text


def always(now: Situation) -> str:
    """No condition."""
    return ""


def at_rest(now: Situation) -> str:
    """Only between replies."""
    return "Not while a reply is written: Esc stops it." if now.generating else ""


def with_target(now: Situation) -> str:
    """Only with a loaded target."""
    return "" if now.ready else "No model is loaded yet."


def under_way(now: Situation) -> str:
    """Only while something runs that can be stopped."""
    return "" if now.generating or now.loading else "Nothing is running."


def with_text(now: Situation) -> str:
    """Only when there is a reply to copy."""
    return "" if now.text else "There is no reply to copy yet."


def can_retry(now: Situation) -> str:
    """Only between replies, after at least one question."""
    return at_rest(now) or ("" if now.turns else "There is no question to answer again.") or with_target(now)


@dataclass(frozen=True, slots=True)
class Command:
    """One thing the program can do, and the ways to it."""

    name: str  # stable: the id of its key binding, and of its method
    help: str
    keys: str = ""  # Textual key names, comma separated
    slash: str = ""
    usage: str = ""  # what follows the slash command; in [] when it may be left out
    label: str = ""  # in the key bar
    when: Callable[[Situation], str] = always  # "" = possible, else the reason why not
    where: Where = "chat"
    bind: bool = True  # False: the widget handles the keys itself, since they depend on the cursor
    palette: bool = False


COMMANDS: tuple[Command, ...] = (
    Command("send", "Send the prompt", "enter", label="send", where="prompt"),
    Command("newline", "Start a new line in the prompt", "ctrl+j,alt+enter,shift+enter", label="newline", where="prompt"),
    Command("older", "Older prompt, from the first line", "up", where="prompt", bind=False),
    Command("newer", "Newer prompt, from the last line", "down", where="prompt", bind=False),
    Command("complete", "Complete a /command, else go to the transcript", "tab", where="prompt", bind=False),
    Command("back", "Close what is open, clear the selection, stop the reply, go to the prompt", "escape"),
    Command("stop", "Stop the reply or the load; the text so far is kept", slash="stop", when=under_way, palette=True),
    Command("interrupt", "Copy the selection, else stop the reply", "ctrl+c"),
    Command("draft", "Choose the drafter; alone it lists them", "ctrl+g", "draft", "[NAME|off|auto|none|ngram]", "drafter", palette=True),
    Command("model", "Load another model; alone it lists them", "ctrl+l", "model", "[NAME]", "model", at_rest, palette=True),
    Command("new", "Start a new chat", "ctrl+n", "new", label="new", when=at_rest, palette=True),
    Command("retry", "Answer the last question again, as a new version", "ctrl+r", "retry", when=can_retry, palette=True),
    Command("copy", "Copy the last reply; all copies the chat", slash="copy", usage="[last|all]", when=with_text, palette=True),
    Command("k", "Draft exactly N tokens per step; auto decides by itself", slash="k", usage="N|auto", palette=True),
    Command("temp", "Temperature of the next replies; 0 takes the likeliest token", slash="temp", usage="X|auto", palette=True),
    Command("seed", "Fix the seed: same seed, same text; off makes each reply new", slash="seed", usage="N|off", palette=True),
    Command("system", "Set the system prompt; off removes it", slash="system", usage="[TEXT|off]", palette=True),
    Command("tokens", "Show which tokens came from the draft", "ctrl+t", "tokens", "[on|off]", "tokens", palette=True),
    Command("steps", "Look at the steps of the last reply one by one", "f3", "steps", when=with_text, palette=True),
    Command("stats", "More numbers, one line of them, or none", "ctrl+s", "stats", "[off|line|full]", "numbers", palette=True),
    Command("page_up", "Scroll up one page", "pageup"),
    Command("page_down", "Scroll down one page", "pagedown"),
    Command("top", "Go to the first message", "ctrl+home"),
    Command("follow", "Go to the end and follow the reply; also End in an empty prompt", "ctrl+end"),
    Command("palette", "All commands", "ctrl+p", label="commands", where="app", bind=False),
    Command("help", "Keys and commands", "f1", "help", label="help", palette=True),
    Command("quit", "Leave specchat", "ctrl+q", "quit", where="app", palette=True),
    Command("steps_rejected", "All steps, or only those with a wrong draft", "r", label="wrong drafts only", where="steps"),
    Command("steps_copy", "Copy the steps as tab-separated values", "c", label="copy", where="steps"),
    Command("steps_back", "Back to the chat", "escape", label="back", where="steps"),
)
BY_NAME = {command.name: command for command in COMMANDS}
BY_SLASH = {command.slash: command for command in COMMANDS if command.slash}
_KEYS = {"slash": "/", "pageup": "PgUp", "pagedown": "PgDn", "escape": "Esc", "enter": "Enter", "tab": "Tab", "up": "Up", "down": "Down"}


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


def key_bar(now: Situation) -> list[tuple[str, str]]:
    """Key and label of what is worth showing now in the chat, most important first."""
    shown = [command for command in COMMANDS if command.label and command.where not in PLACES and not command.when(now)]
    first = [("Esc", "stop")] if now.generating or now.loading else []
    return first + [(key_label(command.keys), command.label) for command in shown if not (first and command.name == "send")]


def place_bar(where: Where, without: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Key and label of what a place beside the chat offers, except these commands."""
    return [(key_label(c.keys), c.label) for c in COMMANDS if c.where == where and c.label and c.name not in without]


def key_help(where: Where | None = None) -> list[tuple[str, str]]:
    """Keys and what they do; in the chat, or in a place beside it."""
    wanted = [c for c in COMMANDS if c.keys and (c.where == where if where else c.where not in PLACES)]
    return [(" / ".join(key_label(key) for key in command.keys.split(",")), command.help) for command in wanted]


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
