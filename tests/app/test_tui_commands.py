"""Slash commands, keys and palette on the running screen."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.commands import BY_NAME, COMMANDS
from app.screens.help import HelpScreen
from engine.catalog.specs import AUTO, NGRAM, NONE
from engine.protocol import Load, SwapDrafter
from tests.app.tui_world import BIG, SHORT, SMALL, TINY, World, ask, held, sees, started, wait_for


async def say(world: World, pilot, text: str) -> None:  # type: ignore[no-untyped-def]
    """Put a command into the box and send it."""
    world.screen.prompt.put(text)
    await pilot.pause()
    world.screen.completion.close()
    await pilot.press("enter")
    await pilot.pause()


async def test_settings_reach_the_next_request() -> None:
    world = World(SHORT)
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        for text in ("/k 3", "/temp 0.25", "/seed 42", "/system Be kind.\nAlways."):
            await say(world, pilot, text)
        await ask(world, pilot, "hi")
        request = world.requests[0]
        assert (request.k, request.sampling.temperature) == (3, 0.25)
        assert [message.content for message in request.messages] == ["Be kind.\nAlways.", "hi"]
        assert world.screen.chat.seed == 42
        for text in ("/k auto", "/temp auto", "/seed off", "/system off"):
            await say(world, pilot, text)
        await ask(world, pilot, "again")
        request = world.requests[1]
        assert (request.k, request.sampling.temperature, world.screen.chat.seed) == (None, None, None)
        assert request.messages[0].content == "hi"


async def test_wrong_arguments_change_nothing_and_say_what_is_right() -> None:
    world = World()
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        for text, word in (("/k many", "/k takes"), ("/k 65", "/k takes"), ("/temp -1", "/temp takes"), ("/temp nan", "/temp takes")):
            await say(world, pilot, text)
            await wait_for(pilot, lambda word=word: world.toasts[-1].startswith(word))
        await say(world, pilot, "/seed 1.5")
        await wait_for(pilot, lambda: world.toasts[-1].startswith("/seed takes"))
        chat = world.screen.chat
        assert (chat.k, chat.sampling.temperature, chat.seed) == (None, None, None)
        assert not world.requests


async def test_unknown_commands_are_not_sent_and_stay_in_the_box() -> None:
    world = World()
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        await say(world, pilot, "/drfat off")
        await wait_for(pilot, lambda: any("Did you mean /draft?" in text for text in world.toasts))
        assert world.screen.prompt.text == "/drfat off"
        assert not world.requests
        await say(world, pilot, "//draft is a word")
        await wait_for(pilot, lambda: world.requests)
        assert world.requests[0].messages[-1].content == "/draft is a word"


async def test_draft_swaps() -> None:
    """With a name it swaps; without one it opens the list (test_picker.py)."""
    world = World()
    async with world.app.run_test(size=(100, 40)) as pilot:
        await started(world, pilot)
        for argument, spec in (("small", SMALL), ("off", NONE), ("none", NONE), ("auto", AUTO), ("ngram", NGRAM)):
            await say(world, pilot, f"/draft {argument}")
            await wait_for(pilot, lambda spec=spec: world.client.sent[-1] == SwapDrafter(spec))
            await wait_for(pilot, lambda: not world.screen.loaded.loading)
        assert world.machine.remembered[1] == ("big", "small")
        await sees(world, pilot, "draft: ngram")


async def test_draft_takes_a_method() -> None:
    """For this drafter, until another one is chosen; it comes back with it when something else has used the engine."""
    world = World()
    async with world.app.run_test(size=(100, 40)) as pilot:
        await started(world, pilot)
        for argument, command in (
            ("small TLI", SwapDrafter(SMALL, "tli")),
            ("small  slrs", SwapDrafter(SMALL, "slrs")),
            ("small", SwapDrafter(SMALL)),
            ("small pf", SwapDrafter(SMALL, "pf")),
        ):
            await say(world, pilot, f"/draft {argument}")
            await wait_for(pilot, lambda command=command: world.client.sent[-1] == command)
            await wait_for(pilot, lambda: not world.screen.loaded.loading)
        world.screen.loaded.back()
        assert world.client.sent[-2:] == [SwapDrafter(SMALL, "pf")] * 2
        await say(world, pilot, "/draft small ptf")
        await wait_for(pilot, lambda: world.panels)
        assert "small ptf" in world.panels[0].plain


async def test_draft_swaps_in_the_middle_of_a_reply() -> None:
    """The reply goes on, its text is whole, and the header names the new drafter."""
    reply = held(SHORT * 40, 5)
    world = World(reply)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact)
        await say(world, pilot, "/draft small")
        await wait_for(pilot, lambda: "draft: small" in world.shown())
        assert world.screen.situation.generating
        reply.go()
        await wait_for(pilot, lambda: world.rests)
        assert world.replies[0].exact == SHORT * 40
        assert len(world.replies) == 1


async def test_unknown_drafter_names_the_nearest() -> None:
    world = World()
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await say(world, pilot, "/draft smal")
        await wait_for(pilot, lambda: world.panels)
        assert "small" in world.panels[0].plain
        assert len(world.client.sent) == 1


async def test_model_loads() -> None:
    world = World()
    async with world.app.run_test(size=(100, 30)) as pilot:
        await started(world, pilot)
        await say(world, pilot, "/model tiny")
        await wait_for(pilot, lambda: "tiny nf4" in world.shown())
        last = world.client.sent[-1]
        assert isinstance(last, Load)
        assert (last.target, last.drafter) == (TINY, NGRAM)


async def test_model_with_draft_heads() -> None:
    """Beside their own target they become the drafter; beside another one it is said what they are."""
    world = World()
    other = replace(BIG, name="other")
    async with world.app.run_test(size=(100, 30), notifications=True) as pilot:
        await started(world, pilot)
        await say(world, pilot, "/model heads-for-other")
        await sees(world, pilot, "heads-for-other are draft heads for other, not a model to chat with.", "-t other -d heads-for-other")
        assert len(world.client.sent) == 1
        world.screen.loaded.target = other
        world.machine.disk.add("heads-for-other")
        await say(world, pilot, "/model heads-for-other")
        await wait_for(pilot, lambda: len(world.client.sent) == 2)
        swap = world.client.sent[-1]
        assert isinstance(swap, SwapDrafter)
        assert (swap.drafter.name, swap.drafter.kind) == ("heads-for-other", "heads")
        assert world.screen.loaded.target is other


async def test_engine_commands_wait_for_the_reply() -> None:
    world = World(held(SHORT * 40, 5))
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact)
        for text in ("/model tiny", "/new", "/retry"):
            await say(world, pilot, text)
            await wait_for(pilot, lambda: world.toasts and world.toasts[-1].startswith("Not while a reply is written"))
        assert len(world.client.sent) == 2
        await say(world, pilot, "/stop")
        await wait_for(pilot, lambda: world.rests)


async def test_copy_takes_the_exact_text() -> None:
    text = "wide line " * 30 + "\x1b[1m\n\nend"
    world = World(text)
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        await say(world, pilot, "/copy")
        await wait_for(pilot, lambda: "There is no reply to copy yet." in world.toasts)
        await ask(world, pilot, "q")
        await say(world, pilot, "/copy")
        await wait_for(pilot, lambda: world.app.clipboard == text)
        await say(world, pilot, "/copy all")
        await wait_for(pilot, lambda: world.app.clipboard != text)
        assert world.app.clipboard == f"**You**\n\nq\n\n**Reply**\n\n{text}\n"


async def test_control_c_copies_stops_or_explains() -> None:
    world = World(held(SHORT * 40, 5))
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        await pilot.press("ctrl+c")
        await wait_for(pilot, lambda: "Ctrl+Q quits." in world.toasts)
        world.screen.prompt.put("take this")
        world.screen.prompt.select_all()
        await pilot.press("ctrl+c")
        assert world.app.clipboard == "take this"
        await pilot.press("escape")
        assert world.screen.prompt.selected_text == ""
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact)
        await pilot.press("ctrl+c")
        await wait_for(pilot, lambda: world.rests)
        assert world.screen.chat.last is not None
        assert world.screen.chat.last.finish_reason == "cancelled"
        assert world.app.is_running


async def test_completion_by_tab_arrows_enter_and_escape() -> None:
    world = World()
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await pilot.press("/", "d")
        await wait_for(pilot, lambda: world.screen.completion.is_open)
        await sees(world, pilot, "/draft")
        await pilot.press("tab")
        assert world.screen.prompt.text == "/draft "
        await wait_for(pilot, lambda: world.screen.completion.chosen == "/draft off")
        await pilot.press("down", "down", "down", "enter")
        assert world.screen.prompt.text == "/draft small"
        assert len(world.client.sent) == 1
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.client.sent[-1] == SwapDrafter(SMALL) and not world.screen.loaded.loading)
        await pilot.press("/")
        await wait_for(pilot, lambda: world.screen.completion.is_open)
        await pilot.press("escape")
        assert not world.screen.completion.is_open
        assert world.screen.prompt.text == "/"
        world.screen.prompt.put("")
        await pilot.press("tab")
        await wait_for(pilot, lambda: world.screen.focused is world.screen.transcript)
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.screen.focused is world.screen.prompt)


async def test_palette_offers_what_is_possible_and_runs_it() -> None:
    world = World(SHORT)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        offered = {command.help for command in world.app.get_system_commands(world.screen)}
        possible = {c.help for c in COMMANDS if c.palette and not c.when(world.screen.situation)}
        assert possible <= offered
        assert not any("as a new version" in text for text in offered)
        await pilot.press("ctrl+p")
        await wait_for(pilot, lambda: len(world.app.screen_stack) == 2)
        await pilot.press(*"temp")
        await sees(world, pilot, BY_NAME["temp"].help)
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(world.app.screen_stack) == 1)
        await wait_for(pilot, lambda: world.screen.prompt.text == "/temp ")


async def test_help_opens_and_closes() -> None:
    world = World()
    async with world.app.run_test(size=(120, 60)) as pilot:
        await started(world, pilot)
        await pilot.press("f1")
        await wait_for(pilot, lambda: isinstance(world.app.screen, HelpScreen))
        await wait_for(pilot, lambda: "Leave specchat" in world.shown())
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        await wait_for(pilot, lambda: world.screen.focused is world.screen.prompt)


async def test_keys_can_be_rebound_by_id() -> None:
    world = World("One.")
    async with world.app.run_test() as pilot:
        world.app.set_keymap({"new": "f8"})
        await started(world, pilot)
        await ask(world, pilot, "first")
        await pilot.press("f8")
        await wait_for(pilot, lambda: not world.asked)


async def test_quit_by_key_and_by_command() -> None:
    for way in ("ctrl+q", "/quit"):
        world = World()
        async with world.app.run_test() as pilot:
            await started(world, pilot)
            if way.startswith("/"):
                await say(world, pilot, way)
            else:
                await pilot.press(way)
            await wait_for(pilot, lambda world=world: not world.app.is_running)
        assert world.app.return_value == 0


async def test_a_stop_reaches_a_question_that_was_not_sent_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk the question is saved for a moment before it goes to the engine; Esc in this moment counts."""
    world = World(held(SHORT * 40, 5))
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        saved = asyncio.Event()
        monkeypatch.setattr(world.screen, "keep_first", lambda turn: saved.wait())
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.screen.situation.generating)
        assert not world.requests
        await pilot.press("escape")
        saved.set()
        await wait_for(pilot, lambda: world.requests and world.rests)
