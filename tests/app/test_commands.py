"""The table of commands: complete, consistent, and the source of everything that names a command."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from textual.binding import Binding

import app.screens
from app.commands import (
    BY_SLASH,
    COMMANDS,
    PLACES,
    Situation,
    bindings,
    completions,
    help_text,
    key_bar,
    key_help,
    key_label,
    parse,
    slash_help,
)
from app.screens.chat import ChatScreen
from app.screens.help import HelpScreen
from app.screens.place import PlaceScreen
from app.screens.pull import PullScreen
from app.tui import SpecChat
from app.widgets.prompt import Prompt

for _module in pkgutil.iter_modules(app.screens.__path__):
    importlib.import_module(f"app.screens.{_module.name}")


def screen_of(where: str) -> type:
    """The screen that has the methods of a place's commands."""
    found: list[type] = [PlaceScreen, PullScreen, HelpScreen]
    for one in found:
        found += one.__subclasses__()
    return next((one for one in reversed(found) if getattr(one, "WHERE", "") == where), ChatScreen)


ASKED_FOR = ("draft", "model", "new", "quit", "help", "stop", "k", "temp", "seed", "system", "copy", "retry")


def nothing(name: str) -> list[tuple[str, str]]:
    return []


def test_every_command_can_be_carried_out() -> None:
    """Each has a method of its name, and no key or slash word is used twice in one place."""
    for command in COMMANDS:
        if command.bind and command.where != "app":
            assert callable(getattr(screen_of(command.where), f"do_{command.name}")), command.name
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)
    assert len(BY_SLASH) == sum(bool(command.slash) for command in COMMANDS)
    for place in (None, *PLACES):
        here = [command for command in COMMANDS if (command.where if command.where in PLACES else None) == place]
        keys = [key for command in here for key in command.keys.split(",") if key]
        assert len(set(keys)) == len(keys), place
    assert set(ASKED_FOR) <= set(BY_SLASH)


def test_bindings_come_from_the_table_with_ids() -> None:
    """Every bound key of the screen, the prompt and the application has the id of its command."""
    for where, owner in (("chat", ChatScreen), ("prompt", Prompt), ("app", SpecChat)):
        made = [binding for binding in bindings(where) if isinstance(binding, Binding)]  # type: ignore[arg-type]
        wanted = {command.name for command in COMMANDS if command.where == where and command.keys and command.bind}
        assert {binding.id for binding in made} == wanted
        assert bindings(where) == owner.BINDINGS  # type: ignore[arg-type]


def test_help_names_every_key_and_slash_command() -> None:
    slashes = dict(slash_help())
    for command in COMMANDS:
        keys = dict(key_help(command.where if command.where in PLACES else None))
        if command.slash:
            assert slashes[f"/{command.slash} {command.usage}".strip()] == command.help
        if command.keys:
            assert keys[" / ".join(key_label(key) for key in command.keys.split(","))] == command.help
        assert command.help in help_text()


def test_key_labels() -> None:
    keys = ("ctrl+n", "ctrl+end", "escape", "y", "1", "f1", "pageup", "alt+enter", "shift+enter", "f,x")
    assert [key_label(key) for key in keys] == ["^N", "^End", "Esc", "y", "1", "F1", "PgUp", "Alt+Enter", "Shift+Enter", "f"]


@pytest.mark.parametrize(
    ("text", "command", "argument"),
    [
        ("/draft", "draft", ""),
        ("/draft  off ", "draft", "off"),
        ("/DRAFT off", "draft", "off"),
        ("/system two words\nand a line", "system", "two words\nand a line"),
        ("/k 5", "k", "5"),
    ],
)
def test_parse_commands(text: str, command: str, argument: str) -> None:
    typed = parse(text)
    assert typed.command is not None
    assert (typed.command.name, typed.argument, typed.prompt, typed.error) == (command, argument, "", "")


@pytest.mark.parametrize(
    ("text", "prompt"), [("hello /draft", "hello /draft"), ("//draft off", "/draft off"), (" /draft", " /draft"), ("//", "/")]
)
def test_parse_prompts(text: str, prompt: str) -> None:
    typed = parse(text)
    assert (typed.command, typed.prompt, typed.error) == (None, prompt, "")


@pytest.mark.parametrize(
    ("text", "near"),
    [("/drft", "/draft"), ("/modle x", "/model"), ("/retyr", "/retry"), ("/usr/bin/env", "/help"), ("/", "/help"), ("/ x", "/help")],
)
def test_unknown_commands_name_the_nearest(text: str, near: str) -> None:
    """And they are never a prompt."""
    typed = parse(text)
    assert typed.command is None
    assert typed.prompt == ""
    assert near in typed.error


def test_completions() -> None:
    """Commands by prefix, arguments by choice, nothing for texts, literal slashes and several lines."""
    assert [text for text, _ in completions("/s", nothing)] == ["/stop", "/seed ", "/system ", "/steps", "/stats ", "/settings"]
    assert completions("/draft q", lambda name: [("qwen", "a model"), ("off", "plain")]) == [("/draft qwen", "a model")]
    assert [text for text, _ in completions("/", nothing)] == [f"/{c.slash}" + (" " if c.usage else "") for c in BY_SLASH.values()]
    for text in ("s", "//s", "/s\nx", "/nothing x", "/new x", ""):
        assert completions(text, nothing) == []


def test_conditions() -> None:
    """What is not possible says why, and the key bar leaves it out."""
    idle, busy = Situation(ready=True, turns=1, text=True), Situation(ready=True, generating=True, turns=1)
    assert BY_SLASH["stop"].when(idle) == "Nothing is running."
    assert BY_SLASH["stop"].when(busy) == ""
    assert BY_SLASH["new"].when(busy) == BY_SLASH["retry"].when(busy) == "Not while a reply is written: Esc stops it."
    assert BY_SLASH["retry"].when(Situation(ready=True)) == "There is no question to answer again."
    assert BY_SLASH["retry"].when(Situation(turns=1)) == "No model is loaded yet."
    assert BY_SLASH["copy"].when(Situation()) == "There is no reply to copy yet."
    for always in ("draft", "k", "temp", "seed", "system", "help", "quit"):
        assert BY_SLASH[always].when(busy) == ""
    assert ("Esc", "stop") not in key_bar(idle)
    assert key_bar(busy)[0] == ("Esc", "stop")
    assert ("^N", "new") in key_bar(idle)
    assert ("^N", "new") not in key_bar(busy)
