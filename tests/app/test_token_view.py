"""The token view: every token has the class that the verifier gave it, the look tells the classes apart, and the place stays."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from app.commands import BY_NAME
from app.record import Record
from app.widgets.reply import Reply
from app.widgets.token_view import CUES, Part, coloured, colours, look
from engine.protocol import Done, Segment, Step
from engine.trace import scripted
from tests.app.tui_world import World, ask, held, sees, settled, started, wait_for

PARAGRAPHS = "".join(f"Paragraph {n} of a long reply, which is long enough to be wrapped once on a narrow screen.\n\n" for n in range(60))
CODE = "Text.\n\n```py\n" + "".join(f"line_{n} = {n}\n" for n in range(80)) + "```\n\nAfter the code.\n\n"


def step(index: int, emitted: int, drafted: int, accepted: int, segments: tuple[Segment, ...] = ()) -> Step:
    return Step(1, index, segments, emitted, drafted, accepted, drafted, 0.01, 0.02, 0.0, 0.0, index * 0.03)


def recorded(timed) -> Record:  # type: ignore[no-untyped-def]
    record = Record()
    for _, event in timed:
        if isinstance(event, Step):
            record.add(event)
        elif isinstance(event, Done):
            record.finish(event)
    return record


def test_classes_follow_the_counts_of_the_verifier() -> None:
    """Kept up to `accepted`, then the target's own: a correction after a wrong draft, a bonus after a whole one, plain without."""
    record = Record()
    ids = iter(range(100))
    for index, (drafted, accepted) in enumerate(((3, 1), (3, 3), (0, 0), (4, 0)), start=1):
        pieces = tuple(Segment("x", "kept", (next(ids),), 0, index) for _ in range(accepted + 1))
        record.add(step(index, accepted + 1, drafted, accepted, pieces))
    assert [(token.origin, token.position, token.step) for token in record.tokens()] == [
        ("kept", 1, 1), ("correction", 0, 1),
        ("kept", 1, 2), ("kept", 2, 2), ("kept", 3, 2), ("bonus", 0, 2),
        ("plain", 0, 3), ("correction", 0, 4),
    ]  # fmt: skip
    assert [token.id for token in record.tokens()] == list(range(8))


def test_a_character_of_several_tokens_and_a_cut_step() -> None:
    """Three tokens make one character over two steps; the last step kept all of its draft and a stop id, so it has no own token."""
    record = Record()
    record.add(step(1, 2, 2, 1, ()))
    record.add(step(2, 2, 3, 3, (Segment("好", "kept", (1, 2, 3), 1, 2), Segment("!", "kept", (4,), 2, 2))))
    assert [token.origin for token in record.tokens()] == ["kept", "correction", "kept", "kept"]
    assert record.text == "好!"


def test_a_reply_from_a_trace() -> None:
    record = recorded(scripted("one two three four five six seven eight nine ten", kept=(2, 4, 0)))
    assert record.text == "one two three four five six seven eight nine ten"
    for each in record.steps:
        mine = [token for token in record.tokens() if token.step == each.index]
        assert sum(token.origin == "kept" for token in mine) == each.accepted
        assert len(mine) == each.emitted
    for token, segment in zip(record.tokens(), record.segments, strict=True):
        assert (token.origin, token.position, token.step) == (segment.origin, segment.position, segment.step)


def test_looks_have_a_cue_without_colour() -> None:
    assert len(set(CUES.values())) == len(CUES)
    assert look("plain", 0) == ""
    assert look("kept", 1) != look("kept", 3) != look("kept", 5) == look("kept", 9)


@pytest.mark.parametrize("name", [name for name in BUILTIN_THEMES if not name.startswith("ansi")])
def test_colours_can_be_read(name: str) -> None:
    """WCAG contrast of at least 4.5 on the theme's background."""
    theme = BUILTIN_THEMES[name]
    background = Color.parse(theme.to_color_system().generate()["background"])
    for variable, colour in colours(theme.dark).items():
        assert contrast(background, Color.parse(colour)) >= 4.5, variable


def contrast(one: Color, other: Color) -> float:
    """As WCAG 2 defines it."""

    def light(colour: Color) -> float:
        parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour.rgb)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_edges_newlines_and_controls() -> None:
    """An edge before each new step, line ends visible, controls as symbols; pieces without text have no edge."""
    pieces = [
        Segment("a", "kept", (1,), 1, 1),
        Segment("b\n", "bonus", (2,), 0, 1),
        Segment("", "kept", (3,), 1, 2),
        Segment("\x1b]52;", "kept", (4,), 1, 2),
        Segment("[/]", "correction", (5,), 0, 3),
    ]
    content, starts = coloured(pieces)
    assert content.plain == "ab↵\n|␛]52;|[/]"
    assert starts == [0, 1, 4, 5, 11]


def test_wide_characters_are_found_by_row() -> None:
    """Rows count cells, so a character of two cells wraps where the terminal wraps it."""
    part = Part(100, 0)
    part.segments = [Segment("你好" * 10, "kept", (n,), 1, n) for n in range(1, 5)]
    part.paint()

    class Sized(Part):
        content_size = property(lambda self: type("Size", (), {"width": 20})())  # type: ignore[assignment]

    part.__class__ = Sized
    assert [part.row(100 + 20 * n) for n in range(4)] == [0, 2, 4, 6]
    assert part.offset_at(2) == 120
    assert part.offset_at(3) == 140


async def test_switch_shows_the_same_reply_and_back() -> None:
    world = World("A **bold** word and `code`.\n\n- one\n- two")
    async with world.app.run_test(size=(100, 30)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        before = world.shown()
        await pilot.press("ctrl+t")
        await wait_for(pilot, lambda: "Tokens:" in world.shown())
        shown = world.shown()
        assert "A **bold**" in shown.replace("|", "")
        assert "code`.↵" in shown.replace("|", "")
        assert world.replies[0].as_tokens
        await pilot.press("ctrl+t")
        await wait_for(pilot, lambda: world.shown() == before)


async def test_tokens_during_a_reply() -> None:
    """Switched on in mid-reply, more comes in; switched off again nothing is missing; the next reply begins in the view that is on."""
    reply = held(PARAGRAPHS, 100, 200)
    world = World(reply)
    async with world.app.run_test(size=(90, 30)) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(world.replies) == 1 and len(world.replies[0].record.steps) == 100)
        await sees(world, pilot, "Paragraph")
        await pilot.press("ctrl+t")
        await sees(world, pilot, "Tokens:")
        drawn = len(world.replies[0]._markdown.source)
        reply.go()
        await wait_for(pilot, lambda: len(world.replies[0].record.steps) == 200 and not world.drawing)
        assert len(world.replies[0]._markdown.source) == drawn  # the hidden view draws nothing
        reply.go()
        await wait_for(pilot, lambda: world.rests)
        await wait_for(pilot, lambda: "Paragraph 59" in world.shown().replace("|", ""))
        text = "".join(part._shown.plain for part in world.replies[0].query(Part))
        assert text.replace("|", "").replace("↵", "") == PARAGRAPHS
        await pilot.press("ctrl+t")
        await sees(world, pilot, "Paragraph 59 of a long reply")
        await wait_for(pilot, lambda: world.screen.transcript.below == 0)


@pytest.mark.parametrize("text", [PARAGRAPHS, CODE * 2])
async def test_the_switch_keeps_the_place(text: str) -> None:
    """The line at the top of the view stays within a few rows, both ways; at the end the view stays at the end."""
    world = World(text)
    async with world.app.run_test(size=(70, 24)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        view = world.screen.transcript
        await wait_for(pilot, lambda: view.below == 0)
        while view.below <= 20:  # a key that comes while the view still moves may move it by less than a page
            await pilot.press("pageup")
            await settled(pilot)
        reply = world.replies[0]

        def place() -> int:
            return reply.offset_at(round(view.scroll_y) - reply.virtual_region.y)

        for _ in range(2):
            before, shown = place(), reply.as_tokens
            await pilot.press("ctrl+t")
            await wait_for(pilot, lambda shown=shown: reply.as_tokens is not shown)
            await wait_for(pilot, lambda before=before: abs(place() - before) < 150)
            await settled(pilot)
            assert abs(place() - before) < 150, (before, place())
        await pilot.press("ctrl+end")
        await wait_for(pilot, lambda: view.below == 0)
        await pilot.press("ctrl+t")
        await settled(pilot)
        await wait_for(pilot, lambda: view.below == 0)


async def test_old_replies_and_words() -> None:
    """A reply of which no tokens are known stays as text, and that is said; a frozen one shows its tokens, too."""
    world = World("First reply.", "Second reply.")
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        old = Reply("big")
        await world.screen.transcript.add(old)
        await old.finish("Saved before.")
        world.screen.run_command(BY_NAME["tokens"], "maybe")
        await wait_for(pilot, lambda: any("on or off" in text for text in world.toasts))
        await pilot.press("ctrl+t")
        await wait_for(pilot, lambda: any("No tokens are known" in text for text in world.toasts))
        assert not old.as_tokens
        await ask(world, pilot, "go")
        assert world.replies[1].as_tokens
        await world.replies[1].freeze()
        await pilot.pause()
        await sees(world, pilot, "First")
        await pilot.press("ctrl+t")
        await wait_for(pilot, lambda: "First reply." in world.shown())
