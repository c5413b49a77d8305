"""Under the hood: the exact prompt, the context, the log, this machine, the keys; and one reply's tokens and steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from app import doctor
from app.screens.help import HelpScreen
from app.screens.steps import StepsScreen
from app.screens.text import MOST_SHOWN, TextScreen
from engine import places
from engine.protocol import Failed, Look
from engine.replay import ReplayClient, Trace
from tests.app.tui_world import SHORT, World, ask, scripted, started, wait_for

DRAFTED = scripted(SHORT, depth=2, kept=(2, 0, 1))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path


async def type_in(world: World, pilot: Pilot[int], text: str) -> None:
    world.screen.prompt.put(text)
    await pilot.press("enter")


async def text_of(world: World, pilot: Pilot[int], command: str) -> TextScreen:
    """Send a command that opens a text, and wait for the text."""
    await type_in(world, pilot, command)
    await wait_for(pilot, lambda: isinstance(world.app.screen, TextScreen) and world.app.screen.exact)
    screen = world.app.screen
    assert isinstance(screen, TextScreen)
    return screen


async def test_the_exact_prompt_is_shown_and_copied() -> None:
    """What the model read for the last question, with its number of tokens and its template; before any question, what is there."""
    world = World(SHORT)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        await type_in(world, pilot, "/system Be [bold]kind[/].")
        screen = await text_of(world, pilot, "/prompt")
        assert screen.exact == "system: Be [bold]kind[/].\n\nuser: (your question)"
        await pilot.press("escape")
        await ask(world, pilot, "why?\x1b[2J")
        screen = await text_of(world, pilot, "/prompt")
        assert screen.exact == "system: Be [bold]kind[/].\n\nuser: why?\x1b[2J"
        shown = world.shown()
        assert "The prompt of the last question" in shown
        assert "5 tokens · plain role labels" in shown
        assert "\x1b" not in shown
        assert "[bold]kind[/]" in shown
        await pilot.press("y")
        assert world.app.clipboard == screen.exact
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        assert len(world.requests) == 1


async def test_the_context_says_how_full_it_is() -> None:
    """All that was said counts, the last answer too."""
    world = World("one two three")
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "count please")
        await type_in(world, pilot, "/context")
        await wait_for(pilot, lambda: world.panels)
        look = world.client.sent[-1]
        assert isinstance(look, Look)
        assert [message.content for message in look.prompt.messages] == ["count please", "one two three"]
        assert look.prompt.carry_on
        assert "7 of 8,192 tokens" in world.panels[0].plain
        assert "1 turn," in world.panels[0].plain


async def test_a_prompt_that_cannot_be_made_is_an_error() -> None:
    """A broken template, for instance; the next look is answered again."""
    world = World(SHORT)
    broken = Failed("The chat template of big cannot be used: no user.", "Give another one in models.toml.", "config")
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        await wait_for(pilot, lambda: not world.screen.loaded.loading)
        world.screen._looks.append("prompt")
        await world.screen.take([broken])
        await wait_for(pilot, lambda: world.panels and broken.message in world.panels[0].plain)
        assert world.screen.loaded.ready is not None
        await text_of(world, pilot, "/prompt")


async def test_not_without_a_model_nor_during_a_reply() -> None:
    trace = Trace(replies=(scripted(SHORT * 20, step_s=0.02),))
    world = World(trace=trace, speed=1.0)
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        await type_in(world, pilot, "go")
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact)
        await type_in(world, pilot, "/prompt")
        await wait_for(pilot, lambda: any("Not while a reply is written" in toast for toast in world.toasts))
        assert not any(isinstance(command, Look) for command in world.client.sent)
        await pilot.press("escape")


async def test_log_shows_its_end_and_its_place() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(100, 24)) as pilot:
        await started(world, pilot)
        screen = await text_of(world, pilot, "/log")
        assert "Nothing was logged yet" in (screen.exact or "")
        await pilot.press("q")
        (places.log_dir() / "specchat.log").write_text("".join(f"line {n}\n" for n in range(1000)) + "the end \x1b]0;x\x07\n")
        screen = await text_of(world, pilot, "/log")
        assert (screen.exact or "").startswith("line 501\n")
        await wait_for(pilot, lambda: "the end" in world.shown())
        assert "\x1b" not in world.shown()
        assert "specchat.log" in world.shown().split("\n")[0]


async def test_a_huge_text_is_cut_on_the_screen_only() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        text = "x" * (MOST_SHOWN + 10)
        screen = TextScreen("Much", "", text, end=True)
        world.app.push_screen(screen)
        await wait_for(pilot, lambda: world.app.screen is screen)
        await wait_for(pilot, lambda: str(screen._shown.content).startswith("… 10 more characters before this"))
        await pilot.press("y")
        assert world.app.clipboard == text


async def test_doctor_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor is asked in a thread; the keys are listed by the ids that config.toml takes, rebound ones as they are now."""
    monkeypatch.setattr(doctor, "examine", lambda: {"found": 1})
    monkeypatch.setattr(doctor, "words", lambda facts: f"MACHINE\n  {facts}")
    world = World(SHORT)
    world.app.rebound = {"tokens": "ctrl+x"}
    async with world.app.run_test(size=(100, 30)) as pilot:
        await started(world, pilot)
        assert (await text_of(world, pilot, "/doctor")).exact == "MACHINE\n  {'found': 1}"
        await pilot.press("escape")
        text = (await text_of(world, pilot, "/keys")).exact or ""
        assert "config.toml" in text
        assert any(line.split()[:2] == ["tokens", "^X"] for line in text.splitlines())
        assert any(line.split()[:2] == ["race_use", "u"] for line in text.splitlines())


async def test_help_about_a_word_and_a_titled_chat() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        await type_in(world, pilot, "/help temperature")
        await wait_for(pilot, lambda: isinstance(world.app.screen, HelpScreen))
        await wait_for(pilot, lambda: "/temp" in world.shown())
        assert "/greedy" in world.shown()
        assert "/copy" not in world.shown()
        await pilot.press("escape")
        await type_in(world, pilot, "/help no such thing")
        await wait_for(pilot, lambda: isinstance(world.app.screen, HelpScreen) and "Send the prompt" in world.shown())
        await pilot.press("escape")
        await type_in(world, pilot, "/new Rivers [bold]")
        await wait_for(pilot, lambda: world.screen.chat.title == "Rivers [bold]")
        await wait_for(pilot, lambda: "Rivers [bold]" in world.shown())


async def test_thinking_is_asked_for_or_not() -> None:
    """The wish goes along with each request, is kept with the chat, and says nothing by itself."""
    world = World(SHORT)
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "one")
        for word, wish in (("off", False), ("on", True), ("auto", None)):
            await type_in(world, pilot, f"/think {word}")
            await wait_for(pilot, lambda wish=wish: world.screen.chat.thinking is wish)
            await ask(world, pilot, word)
        assert [request.think for request in world.requests] == [None, False, True, None]
        await type_in(world, pilot, "/think maybe")
        await wait_for(pilot, lambda: any("fold, show, on, off or auto" in toast for toast in world.toasts))


async def test_one_reply_by_its_tokens_and_its_steps() -> None:
    """t and i on a reply are about that one; on a question they say so."""
    world = World(DRAFTED, DRAFTED)
    async with world.app.run_test(size=(80, 24), notifications=True) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "first")
        await ask(world, pilot, "second")
        assert isinstance(world.client, ReplayClient)
        await pilot.press("tab", "g", "j")
        first, second = world.replies
        await wait_for(pilot, lambda: world.screen.transcript.current is first)
        await pilot.press("t")
        await wait_for(pilot, lambda: first.as_tokens)
        assert not second.as_tokens
        assert world.screen.legend.has_class("-on")
        await pilot.press("t")
        await wait_for(pilot, lambda: not first.as_tokens)
        assert not world.screen.legend.has_class("-on")
        await pilot.press("i")
        await wait_for(pilot, lambda: isinstance(world.app.screen, StepsScreen))
        assert "Steps of this reply" in world.shown()
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        await pilot.press("k")
        await pilot.press("t", "i")
        await wait_for(pilot, lambda: len(world.toasts) >= 2)
        assert "Only a reply has tokens to show." in world.toasts
