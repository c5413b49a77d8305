"""The cursor on messages, and what can be done with them: versions, branches, editing, undo, continue, delete, find, copies."""

from __future__ import annotations

from textual.pilot import Pilot

from app.chat import ChatOptions
from app.screens.ask import AskScreen
from app.widgets.messages import UserMessage
from app.widgets.reply import Reply
from engine.catalog.specs import NGRAM
from tests.app.test_tui_commands import say
from tests.app.tui_world import BIG, SHORT, World, ask, held, sees, started, wait_for

CODE = "Two blocks:\n\n```py\nprint(1)  # " + "long " * 40 + "\n```\n\n- and\n\n  ```sh\n  ls\n  ```\n"


async def talked(world: World, pilot: Pilot[int], *questions: str) -> None:
    """Ask these, one after the other."""
    await started(world, pilot)
    for question in questions:
        await ask(world, pilot, question)


def at(world: World) -> str:
    """What the cursor stands on."""
    current = world.screen.transcript.current
    return "" if current is None else current.exact


async def test_the_cursor_walks_over_the_messages() -> None:
    world = World("One.", "Two.")
    async with world.app.run_test() as pilot:
        await talked(world, pilot, "first", "second")
        await pilot.press("tab")
        await wait_for(pilot, lambda: at(world) == "Two.")
        seen = []
        for key in ("k", "up", "k", "k", "j", "down", "g", "G", "home", "end"):
            await pilot.press(key)
            await pilot.pause()
            seen.append(at(world))
        assert seen == ["second", "One.", "first", "first", "One.", "second", "first", "Two.", "first", "Two."]
        assert world.screen.transcript.current is not None
        assert world.screen.transcript.current.has_class("-current")
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.screen.focused is world.screen.prompt)
        assert not world.screen.transcript.current.has_class("-current")


async def test_edit_makes_a_branch_and_brackets_walk_between_them() -> None:
    """e on a question; Enter sends it beside the old one; [ and ] change the conversation that is shown and sent."""
    world = World("One.", "Two.", "Three.", "Four.")
    async with world.app.run_test(size=(100, 30)) as pilot:
        await talked(world, pilot, "first", "second")
        await pilot.press("tab", "g", "e")
        await wait_for(pilot, lambda: world.screen.focused is world.screen.prompt)
        assert world.screen.prompt.text == "first"
        await sees(world, pilot, "Editing a question")
        world.screen.prompt.put("first, better")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(world.requests) == 3 and world.rests)
        assert [m.content for m in world.requests[2].messages] == ["first, better"]
        assert world.asked == ["first, better"]
        assert "Editing" not in world.shown()
        await pilot.press("tab", "g", "[")
        await wait_for(pilot, lambda: world.asked == ["first", "second"])
        assert at(world) == "first"
        assert [reply.exact for reply in world.replies] == ["One.", "Two."]
        await wait_for(pilot, lambda: "branch 1/2" in world.shown())
        await pilot.press("]")
        await wait_for(pilot, lambda: world.asked == ["first, better"])
        await pilot.press("escape")
        await ask(world, pilot, "and?")
        assert [m.content for m in world.requests[3].messages] == ["first, better", "Three.", "and?"]


async def test_escape_leaves_the_editing() -> None:
    world = World("One.", "Two.")
    async with world.app.run_test(notifications=True) as pilot:
        await talked(world, pilot, "first")
        await say(world, pilot, "/edit")
        await wait_for(pilot, lambda: world.screen.prompt.text == "first")
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.screen.prompt.text == "")
        await ask(world, pilot, "second")
        assert [m.content for m in world.requests[1].messages] == ["first", "One.", "second"]
        world.screen.prompt.put("unsent")
        await pilot.press("tab", "k", "e")
        await wait_for(pilot, lambda: any("unsent text in the box" in text for text in world.toasts))
        assert world.screen.prompt.text == "unsent"


async def test_a_version_of_an_earlier_answer() -> None:
    """r on an old reply: what followed stays with the old version, and comes back with it."""
    world = World("One.", "Two.", "Uno.")
    async with world.app.run_test(size=(100, 30)) as pilot:
        await talked(world, pilot, "first", "second")
        await pilot.press("tab", "g", "j", "r")
        await wait_for(pilot, lambda: len(world.requests) == 3 and world.rests)
        await wait_for(pilot, lambda: [reply.exact for reply in world.replies] == ["Uno."])
        assert world.asked == ["first"]
        await sees(world, pilot, "version 2/2")
        await pilot.press("left_square_bracket")
        await wait_for(pilot, lambda: world.asked == ["first", "second"])
        assert [reply.exact for reply in world.replies] == ["One.", "Two."]
        assert at(world) == "One."


async def test_a_stopped_new_version_of_an_earlier_answer_brings_everything_back() -> None:
    world = World("One.", "Two.", held("Uno.", 0))
    async with world.app.run_test(size=(100, 30)) as pilot:
        await talked(world, pilot, "first", "second")
        await pilot.press("tab", "g", "r")
        await wait_for(pilot, lambda: len(world.requests) == 3)
        await wait_for(pilot, lambda: world.asked == ["first"])
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.asked == ["first", "second"] and [r.exact for r in world.replies] == ["One.", "Two."])
        assert all(reply.display for reply in world.replies)


async def test_undo_and_redo() -> None:
    world = World("One.", "Two.", "Three.")
    async with world.app.run_test(notifications=True) as pilot:
        await talked(world, pilot, "first", "second")
        await say(world, pilot, "/undo")
        await wait_for(pilot, lambda: world.asked == ["first"])
        assert world.screen.prompt.text == "second"
        world.screen.prompt.put("")
        await say(world, pilot, "/redo")
        await wait_for(pilot, lambda: world.asked == ["first", "second"])
        assert [reply.exact for reply in world.replies] == ["One.", "Two."]
        await say(world, pilot, "/redo")
        await wait_for(pilot, lambda: any("nothing to bring back" in text for text in world.toasts))
        await say(world, pilot, "/undo")
        await wait_for(pilot, lambda: world.asked == ["first"])
        await ask(world, pilot, "third")
        assert [m.content for m in world.requests[2].messages] == ["first", "One.", "third"]


async def test_continue_goes_on_in_the_same_reply() -> None:
    world = World(held(SHORT * 40, 8), " And on.")
    async with world.app.run_test(size=(100, 30), notifications=True) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and len(world.replies[0].exact) > 60)
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.rests)
        begun = world.replies[0].exact
        done = world.screen.chat.last
        assert done is not None
        await say(world, pilot, "/continue")
        await wait_for(pilot, lambda: len(world.requests) == 2 and world.rests)
        request = world.requests[1]
        assert (request.carry_on, request.offset, request.seed) == (True, len(done.token_ids), done.seed)
        assert [m.content for m in request.messages] == ["go", begun]
        await wait_for(pilot, lambda: [reply.exact for reply in world.replies] == [begun + " And on."])
        assert world.replies[0].record.text == begun + " And on."
        await wait_for(pilot, lambda: "And on." in world.shown())
        await say(world, pilot, "/continue")
        await wait_for(pilot, lambda: any("The last reply is complete" in text for text in world.toasts))


async def test_delete_asks() -> None:
    """One of several versions, then a question with everything behind it."""
    world = World("One.", "Uno.", "Two.")
    async with world.app.run_test(size=(100, 30)) as pilot:
        await talked(world, pilot, "first")
        await pilot.press("ctrl+r")
        await wait_for(pilot, lambda: len(world.requests) == 2 and world.rests)
        await ask(world, pilot, "second")
        await pilot.press("tab", "g", "j", "d")
        await wait_for(pilot, lambda: isinstance(world.app.screen, AskScreen))
        await sees(world, pilot, "this version of the answer")
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        assert world.asked == ["first", "second"]
        await pilot.press("d")
        await wait_for(pilot, lambda: isinstance(world.app.screen, AskScreen))
        await pilot.press("y")
        await wait_for(pilot, lambda: [reply.exact for reply in world.replies] == ["One."])
        await pilot.press("g", "d")
        await wait_for(pilot, lambda: isinstance(world.app.screen, AskScreen))
        await pilot.press("y")
        await wait_for(pilot, lambda: world.asked == [])
        assert world.screen.chat.turns == []


async def test_copies_by_key() -> None:
    """y the message, Y the chat, c one code block after the other: from the source, without the line breaks of the screen."""
    world = World(CODE, "None here.")
    async with world.app.run_test(notifications=True) as pilot:
        await talked(world, pilot, "code?", "more?")
        await pilot.press("tab", "g", "y")
        await wait_for(pilot, lambda: world.app.clipboard == "code?")
        await pilot.press("j", "y")
        await wait_for(pilot, lambda: world.app.clipboard == CODE)
        await pilot.press("Y")
        await wait_for(pilot, lambda: world.app.clipboard == world.screen.chat.markdown())
        first = "print(1)  # " + "long " * 40 + "\n"
        for text in (first, "ls\n", first):
            await pilot.press("c")
            await wait_for(pilot, lambda text=text: world.app.clipboard == text)
        assert any("Code block 2 of 2" in text for text in world.toasts)
        await pilot.press("G", "c")
        await wait_for(pilot, lambda: any("no code block in this message" in text for text in world.toasts))


async def test_copy_code_by_command() -> None:
    world = World(CODE)
    async with world.app.run_test(notifications=True) as pilot:
        await talked(world, pilot, "code?")
        await say(world, pilot, "/copy code 2")
        await wait_for(pilot, lambda: world.app.clipboard == "ls\n")
        for text, answer in (("/copy code 3", "code blocks 1 to 2"), ("/copy nothing", "/copy takes")):
            await say(world, pilot, text)
            await wait_for(pilot, lambda answer=answer: any(answer in toast for toast in world.toasts))


async def test_find_in_the_chat() -> None:
    """/ asks, n and N walk round the matches in questions and answers, in source text."""
    world = World("A **needle** here.", "Nothing.", "Another Needle.")
    async with world.app.run_test(notifications=True) as pilot:
        await talked(world, pilot, "first", "needle?", "third")
        await pilot.press("tab", "g", "slash")
        await wait_for(pilot, lambda: world.screen.prompt.text == "/find ")
        await pilot.press(*"needle", "enter")
        await wait_for(pilot, lambda: at(world) == "A **needle** here.")
        for key, place in zip("nnnN", ("needle?", "Another Needle.", "A **needle** here.", "Another Needle."), strict=True):
            await pilot.press(key)
            await wait_for(pilot, lambda place=place: at(world) == place)
        assert any("3 of 3" in text for text in world.toasts)
        await pilot.press("escape")
        await say(world, pilot, "/find haystack")
        await wait_for(pilot, lambda: any("Not in this chat: haystack" in text for text in world.toasts))


async def test_thoughts_are_folded_and_open() -> None:
    """While they are written, at the end, by key and for the whole chat; they are part of the exact text."""
    text = "<think>\nI wonder [bold]\n</think>\n\nThe answer."
    world = World(text, text, options=ChatOptions(target=BIG, drafter=NGRAM))
    async with world.app.run_test(size=(80, 30)) as pilot:
        await talked(world, pilot, "why?")
        assert world.replies[0].exact == text
        await wait_for(pilot, lambda: "▸ thoughts (" in world.shown())
        await sees(world, pilot, "The answer.")
        assert "I wonder" not in world.shown()
        await pilot.press("tab", "o")
        await wait_for(pilot, lambda: "I wonder [bold]" in world.shown())
        assert "<think>" not in world.shown()
        await pilot.press("o")
        await wait_for(pilot, lambda: "I wonder" not in world.shown())
        await pilot.press("escape")
        await say(world, pilot, "/think show")
        await wait_for(pilot, lambda: "I wonder [bold]" in world.shown())
        await ask(world, pilot, "again?")
        await wait_for(pilot, lambda: world.shown().count("I wonder [bold]") == 2)
        await say(world, pilot, "/copy")
        await wait_for(pilot, lambda: world.app.clipboard == text)


async def test_what_the_cursor_may_stand_on_is_what_is_shown() -> None:
    world = World("One.")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await pilot.press("tab", "k", "y", "c", "e", "r", "d", "[", "n", "o", "g", "G")
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.screen.focused is world.screen.prompt)
        await ask(world, pilot, "first")
        assert [type(place) for place in world.screen.transcript.places] == [UserMessage, Reply]
