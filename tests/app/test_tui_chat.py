"""Asking, streaming, stopping, prompts, versions: the everyday of the chat screen."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from textual import events
from textual.widgets import Markdown

from app.chat import ChatOptions
from app.command_table import BY_NAME
from app.seeds import reply_seed
from engine.catalog.specs import NGRAM
from engine.protocol import Load, Loading, Message
from engine.replay import READY, Trace, load_trace
from tests.app.tui_world import BIG, SHORT, TRACES, Held, World, ask, held, scripted, sees, started, wait_for

LONG = "\n\n".join(f"Paragraph {n} with some words in it." for n in range(200))


async def test_ask_and_answer() -> None:
    """A question streams in, ends as Markdown, and the next one carries both."""
    world = World(SHORT, "Second.", options=ChatOptions(target=BIG, drafter=NGRAM, system="Be brief."))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "why?")
        assert world.asked == ["why?"]
        assert [reply.exact for reply in world.replies] == [SHORT]
        assert world.replies[0].query_one(Markdown).source == SHORT
        await sees(world, pilot, "A short answer, said quickly.")
        assert world.screen.prompt.text == ""
        await wait_for(pilot, lambda: world.screen.focused is world.screen.prompt)
        await ask(world, pilot, "and?")
        assert world.requests[1].messages == (
            Message("system", "Be brief."),
            Message("user", "why?"),
            Message("assistant", SHORT),
            Message("user", "and?"),
        )
        assert world.requests[0].reply != world.requests[1].reply


async def test_recorded_trace_shows_numbers() -> None:
    """A trace from a file: load notes, segments, and the numbers of the reply in its title and the status line."""
    trace = load_trace(TRACES / "chat.json")
    load = Held(trace.load, len(trace.load) - 1)
    world = World(trace=replace(trace, load=load))
    async with world.app.run_test(size=(120, 40)) as pilot:
        await sees(world, pilot, "LOAD")
        load.go()
        await started(world, pilot)
        assert world.notes == ["This model has no chat template: a plain one is used."]
        await ask(world, pilot, "write fib")
        await sees(world, pilot, "pub fn fib(n: u32) -> u64 {", "idle", "τ", "x est", f"seed {world.requests[0].seed}")


async def test_a_question_waits_for_the_model() -> None:
    """Sent while loading it is held, then sent; the load time is no part of the waiting time for the first token."""
    load = Held(((0.0, Loading("reading", 1, 2, "bytes")), (0.0, READY)), 1)
    world = World(trace=Trace(load=load, replies=(scripted(SHORT),)))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: world.screen.loaded.loading)
        world.screen.prompt.put("early")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.asked == ["early"])
        await pilot.pause(1.0)
        assert not world.requests
        loaded_s = time.monotonic()
        load.go()
        await wait_for(pilot, lambda: world.requests and world.rests)
        assert world.replies[0].exact == SHORT
        numbers = world.screen.meter.numbers()
        assert numbers.ttft_s is not None
        assert numbers.ttft_s <= time.monotonic() - loaded_s


async def test_stopping_a_load_gives_the_question_back() -> None:
    world = World(trace=Trace(load=Held(((0.0, Loading("reading")), (0.0, READY)), 1), replies=(scripted(SHORT),)))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: world.screen.loaded.loading)
        world.screen.prompt.put("early")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.screen.held)
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.screen.prompt.text == "early")
        assert world.asked == []
        assert "Loading was stopped." in world.notes


async def test_stop_keeps_the_text() -> None:
    """Esc stops; what was written stays, on the screen and in the conversation."""
    world = World(held(LONG, 40), SHORT)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and len(world.replies[0].exact) > 100)
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.rests)
        kept = world.replies[0].exact
        assert LONG.startswith(kept)
        assert len(kept) < len(LONG)
        await wait_for(pilot, lambda: "Stopped by you" in world.shown())
        await ask(world, pilot, "next")
        assert world.requests[1].messages[1] == Message("assistant", kept)


async def test_stop_before_the_first_word_gives_the_prompt_back() -> None:
    world = World(held(SHORT, 0))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        world.screen.prompt.put("never mind")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.screen.situation.generating)
        await sees(world, pilot, "READ")
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.screen.prompt.text == "never mind")
        assert world.replies == []
        assert world.asked == []
        assert world.screen.chat.turns == []


async def test_newline_keys_and_paste_never_send() -> None:
    """Three keys make a newline; a paste keeps its lines and sends nothing; Enter sends it all."""
    world = World()
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await pilot.press("a", "ctrl+j", "b", "alt+enter", "c", "shift+enter", "d")
        assert world.screen.prompt.text == "a\nb\nc\nd"
        await wait_for(pilot, lambda: world.screen.prompt.size.height == 4)
        world.app.post_message(events.Paste("\r\nx\ry\nz\x1b[2J"))
        await wait_for(pilot, lambda: world.screen.prompt.text.endswith("J"))
        assert world.screen.prompt.text == "a\nb\nc\nd\nx\ny\nz␛[2J"
        assert not world.requests
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.requests)
        assert world.requests[0].messages[-1].content == "a\nb\nc\nd\nx\ny\nz␛[2J"
        await wait_for(pilot, lambda: world.screen.prompt.size.height == 1)


async def test_a_long_prompt_keeps_to_ten_rows_and_is_folded() -> None:
    world = World()
    async with world.app.run_test(size=(80, 40)) as pilot:
        await started(world, pilot)
        text = "\n".join(f"line {n}" for n in range(300))
        world.screen.prompt.put(text)
        await wait_for(pilot, lambda: world.screen.prompt.size.height == 10)
        await ask(world, pilot, text)
        assert world.requests[0].messages[-1].content == text
        world.screen.transcript.scroll_home(animate=False)
        await wait_for(pilot, lambda: "folded here; 2,589 characters in 300 lines" in world.shown())
        await sees(world, pilot, "line 23")
        assert "line 24" not in world.shown()


async def test_a_prompt_of_a_hundred_thousand_characters() -> None:
    """One endless line is pasted, sent whole and drawn folded, without a pause that anybody would notice."""
    world = World()
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        text = "word " * 20_000
        start_s = time.process_time()  # on a busy machine only the work counts
        world.app.post_message(events.Paste(text))
        await wait_for(pilot, lambda: world.screen.prompt.text == text)
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact == SHORT)
        assert time.process_time() - start_s < 6.0
        assert world.requests[0].messages[-1].content == text
        assert "folded here; 100,000 characters" in "".join(str(message.content) for message in world.screen.query("UserMessage"))


async def test_history_of_prompts() -> None:
    """Up and Down at the edges walk through what was sent; the unsent text comes back."""
    world = World("One.", "Two.")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "first")
        await ask(world, pilot, "second\nline")
        prompt = world.screen.prompt
        prompt.put("unsent")
        seen = []
        for key in ("up", "up", "up", "down", "down", "down", "down"):
            await pilot.press(key)
            await pilot.pause()
            seen.append(prompt.text)
        assert seen == ["second\nline", "first", "first", "second\nline", "unsent", "unsent", "unsent"]


async def test_enter_during_a_reply_keeps_the_text_in_the_box() -> None:
    world = World(held(LONG, 5))
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and world.requests)
        world.screen.prompt.put("meanwhile")
        await pilot.press("enter")
        await wait_for(pilot, lambda: any("Esc stops it" in text for text in world.toasts))
        assert world.screen.prompt.text == "meanwhile"
        assert len(world.requests) == 1
        world.client.stop()


@pytest.mark.parametrize("loading", [False, True])
async def test_typed_faster_than_it_is_drawn(loading: bool) -> None:
    """Lines that arrive as keys, as from a paste without brackets: the first is sent, what follows stays in the box, once each."""
    load = Held(((0.0, Loading("reading")), (0.0, READY)), *([1] if loading else []))
    world = World(trace=Trace(load=load, replies=(held(LONG, 5),)))
    async with world.app.run_test() as pilot:
        await (wait_for(pilot, lambda: world.screen.loaded.loading) if loading else started(world, pilot))
        for text in ("one", "two", "three"):
            world.screen.prompt.put(text)
            world.screen.run_command(BY_NAME["send"])
            while text == "one" and world.screen.prompt.text:  # until it is taken from the box, and no longer
                await asyncio.sleep(0)
        load.go()
        await wait_for(pilot, lambda: world.requests)
        await pilot.pause()
        assert world.asked == ["one"]
        assert [request.messages[-1].content for request in world.requests] == ["one"]
        assert world.screen.prompt.text == "three"


async def test_again_and_again_at_once() -> None:
    """^R twice, faster than it is drawn, is one new version."""
    world = World(SHORT, "Second.", "Third.")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "why?")
        world.screen.run_command(BY_NAME["retry"])
        world.screen.run_command(BY_NAME["retry"])
        await wait_for(pilot, lambda: len(world.requests) == 2 and world.rests)
        assert len(world.screen.chat.turns[0].versions.items) == 2


async def test_retry_makes_a_new_version() -> None:
    """The same question, the next seed of the mix; the new text replaces the old on the screen and in the conversation."""
    world = World("One.", "Uno.", "Next.", options=ChatOptions(target=BIG, drafter=NGRAM, seed=11))
    async with world.app.run_test(size=(120, 30)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "count")
        await pilot.press("ctrl+r")
        await wait_for(pilot, lambda: len(world.requests) == 2 and world.rests)
        await wait_for(pilot, lambda: [reply.exact for reply in world.replies] == ["Uno."])
        assert [request.seed for request in world.requests] == [reply_seed(11, 0, 0), reply_seed(11, 0, 1)]
        assert world.requests[0].messages == world.requests[1].messages
        await sees(world, pilot, "version 2")
        await ask(world, pilot, "more")
        assert world.requests[2].messages[1].content == "Uno."
        assert world.requests[2].seed == reply_seed(11, 1, 0)


async def test_a_stopped_retry_brings_the_old_version_back() -> None:
    world = World("One.", held("Uno.", 0))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "count")
        await pilot.press("ctrl+r")
        await wait_for(pilot, lambda: len(world.requests) == 2)
        await wait_for(pilot, lambda: not world.replies[0].display)
        await pilot.press("escape")
        await wait_for(pilot, lambda: len(world.replies) == 1 and world.replies[0].display)
        assert world.screen.chat.last is not None
        assert world.screen.chat.last.text == "One."
        assert world.screen.prompt.text == ""


async def test_new_chat_forgets_the_turns() -> None:
    world = World("One.", "Two.")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "first")
        await pilot.press("ctrl+n")
        await wait_for(pilot, lambda: not world.replies and not world.asked)
        await ask(world, pilot, "second")
        assert [message.content for message in world.requests[1].messages] == ["second"]


async def test_what_was_loaded_is_remembered() -> None:
    world = World()
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await wait_for(pilot, lambda: world.machine.remembered == [("big", None)])
        load = world.client.sent[0]
        assert isinstance(load, Load)
        assert (load.target, load.drafter) == (BIG, NGRAM)
