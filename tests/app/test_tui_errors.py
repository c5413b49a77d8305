"""What fails is said in the transcript, with a way out; prompts and text are never lost."""

from __future__ import annotations

from dataclasses import replace

from app.chat import ChatOptions
from app.screens.failures import reply_panel
from engine.catalog.specs import NGRAM, NONE
from engine.protocol import Failed, Generate, Load, LoadOptions, Message, Ready, SwapDrafter
from engine.replay import READY, ReplayClient, Trace
from tests.app.tui_world import BIG, SHORT, SMALL, World, ask, held, scripted, sees, started, stuck, wait_for

TOO_LONG = Failed(
    "The question does not fit into the context.", "Shorten it.", "too_long", numbers={"needed": 21000, "limit": 8192, "droppable": 2}
)
NO_MEMORY = Failed("Not enough memory to load small.", "It needs about 3.3 GB; 2.1 GB is free.", "memory", numbers={"needed": 3.3e9})


async def test_a_failed_reply_gives_the_prompt_back() -> None:
    """The sentence and the hint in a panel, the question in the box, and the next question works."""
    world = World(((0.0, Failed("The model gave no numbers.", "Load it again.", "internal")),), SHORT)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "why?")
        await wait_for(pilot, lambda: world.panels)
        assert "The model gave no numbers." in world.panels[0].plain
        assert "Load it again." in world.panels[0].plain
        await sees(world, pilot, "! The model gave no numbers.")
        assert world.screen.prompt.text == "why?"
        assert world.asked == []
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact == SHORT)
        assert [message.content for message in world.requests[1].messages] == ["why?"]


async def test_a_reply_that_breaks_off_keeps_its_text() -> None:
    part = [timed for timed in scripted("One two three four five six. " * 5) if not hasattr(timed[1], "token_ids")]
    world = World((*part[:6], (0.0, Failed("The device is gone.", "Start again.", "internal"))), SHORT)
    async with world.app.run_test(size=(80, 30)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "count")
        await wait_for(pilot, lambda: world.panels)
        kept = world.replies[0].exact
        assert kept.startswith("One two three")
        await sees(world, pilot, "Broken off by the error below")
        assert world.screen.prompt.text == ""
        await ask(world, pilot, "go on")
        assert [message.content for message in world.requests[1].messages] == ["count", kept, "go on"]


async def test_too_long_asks_and_drops_on_yes() -> None:
    """y sends it again with `trim`; the screen says what was dropped, and later requests leave it out."""
    trimmed = scripted("Fine.")
    done = trimmed[-1][1]
    world = World("One.", ((0.0, TOO_LONG),), (*trimmed[:-1], (0.0, replace(done, trimmed=2))), "Last.")
    async with world.app.run_test(size=(80, 30)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "first")
        await ask(world, pilot, "second")
        await wait_for(pilot, lambda: world.panels)
        panel = world.panels[0]
        assert "21,000" in panel.plain
        assert "8,192" in panel.plain
        assert "holds 8,192.\nThe first to go: first\nDrop the 2 oldest messages and send?" in panel.plain
        assert world.screen.focused is panel
        assert world.asked == ["first", "second"]
        await pilot.press("y")
        await wait_for(pilot, lambda: len(world.requests) == 3 and world.rests)
        assert world.requests[2].trim
        assert not world.requests[1].trim
        await wait_for(pilot, lambda: "The 2 oldest messages are no longer sent" in world.shown())
        await ask(world, pilot, "third")
        assert [message.content for message in world.requests[3].messages] == ["second", "Fine.", "third"]


def test_the_first_message_to_go_is_named_on_one_short_line() -> None:
    """Also where a system message stays; its first 40 characters, without controls."""
    story = "A long\x1b story,\n\n told " + "again and " * 9_000
    panel = reply_panel(TOO_LONG, generate("Be brief.", story, "Yes.", "last"), drafting=False)
    assert "\nThe first to go: A long␛ story, told again and again and…\nDrop the 2 oldest" in panel.plain
    assert "to go" not in reply_panel(TOO_LONG, generate("Be brief.", "one", "two"), drafting=False).plain  # the engine's number cannot be
    assert "to go" not in reply_panel(TOO_LONG, None, drafting=False).plain


def generate(system: str, *texts: str) -> Generate:
    """A request with these messages, the person's first."""
    said = [Message(("user", "assistant")[n % 2], text) for n, text in enumerate(texts)]
    return Generate(1, (Message("system", system), *said))


async def test_too_long_refused_on_no_and_escape() -> None:
    for key in ("n", "escape"):
        world = World(((0.0, TOO_LONG),), SHORT)
        async with world.app.run_test() as pilot:
            await started(world, pilot)
            await ask(world, pilot, "far too long")
            await wait_for(pilot, lambda world=world: world.screen.focused in world.panels)
            await pilot.press(key)
            await wait_for(pilot, lambda world=world: world.screen.prompt.text == "far too long")
            assert len(world.requests) == 1
            await wait_for(pilot, lambda world=world: world.screen.focused is world.screen.prompt)
            assert world.screen.chat.turns == []


async def test_too_long_that_dropping_cannot_help() -> None:
    """No question then: the numbers, and the text back in the box."""
    world = World(((0.0, replace(TOO_LONG, numbers={"needed": 21000, "limit": 8192, "droppable": 0})),))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "far too long")
        await wait_for(pilot, lambda: world.panels)
        assert "It needs 21,000 tokens; the context holds 8,192." in world.panels[0].plain
        assert world.panels[0].choices == ()
        assert world.screen.prompt.text == "far too long"


async def test_a_load_without_memory_offers_ways_out() -> None:
    """1 loads without the drafter, 2 with a shorter context; what the person chose reaches the engine."""
    for key, drafter, context in (("1", NONE, None), ("2", SMALL, 4096)):
        world = World(trace=Trace(load=((0.0, NO_MEMORY),)), options=ChatOptions(target=BIG, drafter=SMALL))
        async with world.app.run_test() as pilot:
            await wait_for(pilot, lambda world=world: world.panels and world.screen.focused is world.panels[0])
            assert "It needs about 3.3 GB; 2.1 GB is free." in world.panels[0].plain
            world.client.trace = Trace(replies=(scripted(SHORT),))
            await pilot.press(key)
            await started(world, pilot)
            last = world.client.sent[-1]
            assert isinstance(last, Load)
            assert (last.target, last.drafter, last.options.context) == (BIG, drafter, context)


async def test_who_holds_the_memory_is_said() -> None:
    """The engine's sentence about other programs stands on the panel of a failed load, and of a failed reply."""
    others = "Other programs hold memory: browser 3.0 GB."
    full = replace(NO_MEMORY, detail=others)
    world = World(trace=Trace(load=((0.0, full),)), options=ChatOptions(target=BIG, drafter=SMALL))
    async with world.app.run_test(size=(80, 30)) as pilot:
        await sees(world, pilot, "Not enough memory to load small.", others, "It needs about 3.3 GB", "Load it without a drafter")
        assert others in world.panels[0].plain
    world = World(((0.0, full),))
    async with world.app.run_test(size=(80, 30)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "why?")
        await sees(world, pilot, others, "Go on without a drafter")


async def test_a_failed_swap_keeps_target_and_chat() -> None:
    """The panel offers the look-up; the reply under way is not touched."""
    vocabulary = Failed("small has another vocabulary.", "It differs at id 5; the bridge is needed.", "vocabulary")
    reply = held(SHORT * 30, 5)
    world = World(trace=Trace(swap=((0.0, vocabulary),), replies=(reply,)))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact)
        world.screen.prompt.put("/draft small")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.panels)
        assert "It differs at id 5" in world.panels[0].plain
        assert world.screen.situation.generating
        world.client.trace = replace(world.client.trace, swap=((0.0, READY),))
        await pilot.press("1")
        await wait_for(pilot, lambda: world.client.sent[-1] == SwapDrafter(NGRAM))
        reply.go()
        await wait_for(pilot, lambda: world.rests)
        assert world.replies[0].exact == SHORT * 30


async def test_a_load_that_loses_only_its_drafter_goes_on() -> None:
    """Two answers to one command: the failure is said, the target is ready, and the waiting question is sent."""
    lost = Failed("small has another vocabulary.", "It differs at id 5.", "vocabulary", lost=("drafter",))
    world = World(trace=Trace(load=((0.0, lost), (0.0, READY)), replies=(scripted(SHORT),)), options=ChatOptions(target=BIG, drafter=SMALL))
    async with world.app.run_test() as pilot:
        world.screen.prompt.put("early")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.panels)
        assert "The model itself is loaded, without a drafter." in world.panels[0].plain
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact == SHORT)
        assert world.screen.loaded.target == BIG
        assert world.screen.loaded.drafter == NONE
        assert not world.screen.loaded.loading
        await sees(world, pilot, "draft: none")


async def test_missing_weights_can_be_fetched() -> None:
    """The engine found files missing: 1 opens the download."""
    missing = Failed("big has no weights.", "Pull it again.", "missing_weights")
    world = World(trace=Trace(load=((0.0, missing),)))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: world.panels and world.screen.focused is world.panels[0])
        world.client.trace = Trace(replies=(scripted(SHORT),))
        world.machine.disk.discard("big")
        await pilot.press("1")
        await wait_for(pilot, lambda: "Nothing is downloaded before you press Enter" in world.shown())
        await pilot.press("enter")
        await started(world, pilot)
        assert world.machine.pulled == ["big"]


async def test_a_lost_target_is_loaded_again_with_the_next_question() -> None:
    gone = Failed("The graphics card ran out of memory.", "Close other programs.", "memory", lost=("target", "drafter"))
    world = World(((0.0, gone),), SHORT)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "why?")
        await wait_for(pilot, lambda: world.panels)
        assert world.screen.loaded.ready is None
        await wait_for(pilot, lambda: world.screen.prompt.text == "why?")
        await pilot.press("escape", "enter")
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact == SHORT)
        assert sum(isinstance(command, Load) for command in world.client.sent) == 2


async def test_a_reply_without_memory_can_go_on_without_the_drafter() -> None:
    world = World(((0.0, NO_MEMORY),), SHORT)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "why?")
        await wait_for(pilot, lambda: world.panels and world.screen.focused is world.panels[0])
        await pilot.press("1")
        await wait_for(pilot, lambda: world.client.sent[-1] == SwapDrafter(NONE))
        assert world.screen.prompt.text == "why?"


async def test_a_dead_engine_is_said() -> None:
    """An engine that ends without an answer does not leave the person waiting."""

    class Dying(ReplayClient):
        alive = property(lambda self: len(self.sent) < 2)  # type: ignore[assignment]

    world = World()
    silent = Trace(replies=(stuck(scripted(SHORT), 0),))  # nothing comes of the question
    world.client = world.app.client = world.app.chat_screen.client = Dying(silent, 1.0)
    world.screen.loaded._client = world.client
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        world.screen.prompt.put("hello?")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.panels)
        assert "The engine has ended unexpectedly." in world.panels[0].plain
        assert world.screen.prompt.text == "hello?"
        world.client.stop()


async def test_errors_are_text_not_markup() -> None:
    nasty = Failed("[bold]x[/] [/foo] \x1b[2J", "arr[0] = [link=x]", "internal")
    world = World(((0.0, nasty),))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "why?")
        await wait_for(pilot, lambda: world.panels)
        await sees(world, pilot, "[bold]x[/] [/foo] ␛[2J", "arr[0] = [link=x]")


async def test_notes_of_a_load_and_start_are_shown_once() -> None:
    ready: Ready = replace(READY, notes=("This model has no chat template.",))
    options = ChatOptions(target=BIG, notes=("models.toml, line 3: unknown key.",), load=LoadOptions(context=512))
    world = World(trace=Trace(load=((0.0, ready),), replies=(scripted(SHORT),)), options=options)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await wait_for(pilot, lambda: len(world.notes) == 2)
        assert world.notes == ["models.toml, line 3: unknown key.", "This model has no chat template."]
