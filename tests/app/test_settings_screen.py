"""The settings on the screen: changed with keys or by writing, kept, and in force as they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.screens.settings import SettingsScreen
from app.settings import SETTINGS
from engine.errors import EngineError
from engine.protocol import Load
from tests.app.tui_world import SHORT, Machine, World, ask, sees, started, wait_for

ROWS = [setting.path for setting in SETTINGS]


async def opened(world: World, pilot, path: str) -> SettingsScreen:  # type: ignore[no-untyped-def]
    if not isinstance(world.app.screen, SettingsScreen):
        await pilot.press("f2")
        await wait_for(pilot, lambda: isinstance(world.app.screen, SettingsScreen))
    screen = world.app.screen
    assert isinstance(screen, SettingsScreen)
    screen._table.move_cursor(row=ROWS.index(path), animate=False)
    await pilot.pause()
    return screen


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (120, 40)])
async def test_steps_and_defaults(size: tuple[int, int]) -> None:
    world = World(SHORT)
    async with world.app.run_test(size=size) as pilot:
        await started(world, pilot)
        await opened(world, pilot, "chat.temp")
        await pilot.press("right", "right", "left")
        await wait_for(pilot, lambda: world.machine.kept == {"chat.temp": 0.7})
        await pilot.press("escape")
        await ask(world, pilot, "hi")
        assert world.requests[0].sampling.temperature == 0.7
        await opened(world, pilot, "chat.temp")
        await pilot.press("backspace")
        await wait_for(pilot, lambda: world.machine.kept == {})
        await pilot.press("escape")
        await ask(world, pilot, "hi")
        assert world.requests[1].sampling.temperature is None


async def test_writing_a_value_and_a_mistake() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(90, 30)) as pilot:
        await started(world, pilot)
        await opened(world, pilot, "chat.k")
        await pilot.press("enter", *"99", "enter")
        await wait_for(pilot, lambda: "! k must be from 0 to 64." in world.shown())
        await pilot.press("backspace", "backspace", "5", "enter")
        await wait_for(pilot, lambda: world.machine.kept == {"chat.k": 5})
        assert world.screen.chat.k == 5
        await opened(world, pilot, "chat.system")
        await pilot.press("enter", *"Be kind.", "enter")
        await wait_for(pilot, lambda: world.machine.kept.get("chat.system") == "Be kind.")
        await pilot.press("enter", "escape", "escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        await ask(world, pilot, "hi")
        assert world.requests[0].messages[0].content == "Be kind."
        assert world.requests[0].k == 5


async def test_verify_counts_for_the_next_reply_and_new_chats() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(90, 30)) as pilot:
        await started(world, pilot)
        await opened(world, pilot, "chat.verify")
        await pilot.press("left")
        await wait_for(pilot, lambda: world.machine.kept == {"chat.verify": "ratio"})
        await opened(world, pilot, "chat.strict")
        await pilot.press("enter", "enter", "escape")
        await ask(world, pilot, "hi")
        assert (world.requests[0].verify, world.requests[0].strict) == ("ratio", True)


async def test_weights_count_from_the_next_load_on() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(90, 30)) as pilot:
        await started(world, pilot)
        screen = await opened(world, pilot, "model.quant")
        await pilot.press("right", "right")
        await wait_for(pilot, lambda: world.machine.kept == {"model.quant": "nf4"})
        await opened(world, pilot, "model.context")
        await pilot.press("right")
        await wait_for(pilot, lambda: world.machine.kept["model.context"] == 8192)
        assert len(world.client.sent) == 1
        await pilot.press("l")
        await wait_for(pilot, lambda: len(world.client.sent) == 2)
        load = world.client.sent[1]
        assert isinstance(load, Load)
        assert (load.options.quant, load.options.context) == ("nf4", 8192)
        assert world.app.screen is not screen


async def test_the_look_changes_at_once_and_at_the_next_start() -> None:
    machine = Machine()
    world = World(SHORT, machine=machine)
    async with world.app.run_test(size=(120, 40)) as pilot:
        await started(world, pilot)
        await sees(world, pilot, "ACCEPTANCE")
        await opened(world, pilot, "screen.theme")
        await pilot.press("right")
        await wait_for(pilot, lambda: "screen.theme" in machine.kept)
        assert world.app.theme == machine.kept["screen.theme"]
        for path, times in (("screen.numbers", 1), ("screen.tokens", 2)):
            await opened(world, pilot, path)
            await pilot.press(*["right"] * times)
        await wait_for(pilot, lambda: machine.kept.get("screen.numbers") == "off")
        await pilot.press("escape")
        await wait_for(pilot, lambda: "Tokens:" in world.shown() and "ACCEPTANCE" not in world.shown())
    again = World(SHORT, machine=machine)
    async with again.app.run_test(size=(120, 40)) as pilot:
        await started(again, pilot)
        await ask(again, pilot, "hi")
        assert again.app.theme == machine.kept["screen.theme"]
        assert "ACCEPTANCE" not in again.shown()
        await sees(again, pilot, "Tokens:")


async def test_what_cannot_be_kept_is_said_and_not_in_force() -> None:
    machine = Machine()
    machine.keep_error = EngineError("config.toml is broken.", "Mend it by hand.", kind="config")
    world = World(SHORT, machine=machine)
    async with world.app.run_test(size=(90, 30)) as pilot:
        await started(world, pilot)
        await opened(world, pilot, "chat.temp")
        await pilot.press("right")
        await wait_for(pilot, lambda: "! config.toml is broken. Mend it by hand." in world.shown())
        assert world.screen.chat.sampling.temperature is None


async def test_theme_command_and_notes_of_a_mistaken_file() -> None:
    machine = Machine()
    machine.config_notes = ("config.toml, line 2: chat.tmep is not known. Did you mean temp?",)
    world = World(SHORT, machine=machine)
    async with world.app.run_test(size=(100, 30), notifications=True) as pilot:
        await started(world, pilot)
        await wait_for(pilot, lambda: "chat.tmep is not known" in world.shown())
        for text, word in (("/theme nord", ""), ("/theme purple rain", "There is no theme purple rain")):
            world.screen.prompt.put(text)
            await pilot.pause()
            world.screen.completion.close()
            await pilot.press("enter")
            if word:
                await wait_for(pilot, lambda word=word: any(word in toast for toast in world.toasts))
        assert world.app.theme == "nord"
        assert machine.kept == {"screen.theme": "nord"}


async def test_keys_of_the_persons_own() -> None:
    """A rebound key works, the old one does not, and bar, help and palette name the new one."""
    machine = Machine()
    machine.keys = {"tokens": "ctrl+x"}
    world = World(SHORT, machine=machine)
    async with world.app.run_test(size=(160, 40)) as pilot:
        await started(world, pilot)
        await sees(world, pilot, "^X tokens")
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert not world.screen.tokens_on
        await pilot.press("ctrl+x")
        await wait_for(pilot, lambda: world.screen.tokens_on)
        titles = [command.title for command in world.app.get_system_commands(world.screen)]
        assert "Tokens  ^X" in titles


def test_the_real_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.surroundings import Surroundings

    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    Surroundings().keep("chat.temp", 0.25)
    assert Surroundings().config().get("chat.temp") == 0.25
    assert (tmp_path / "config" / "config.toml").read_text() == "[chat]\ntemp = 0.25\n"
