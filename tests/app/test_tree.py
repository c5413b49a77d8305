"""The tree of a conversation: branches, versions, undo, continue, and what of it is sent."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.chat import Attachment, Chat, ChatOptions
from app.saved import chat_row, message_rows, restore
from app.seeds import reply_seed
from app.traces import Packer, pack, unpack
from app.tree import Fork, everything, fenced
from engine.protocol import Segment, Step
from tests.app.chats_made import answer, talk


def sent(chat: Chat, prompt: str) -> list[str]:
    contents = [message.content for message in chat.ask(prompt).messages]
    chat.failed()
    chat.drop(chat.turns[-1])
    return contents


def test_editing_makes_a_branch_and_keeps_the_old_one() -> None:
    chat = talk(("a", "1"), ("b", "2"), ("c", "3"), options=ChatOptions(seed=7))
    old = chat.turns[1]
    request = chat.ask_instead(old, "B")
    assert request.seed == reply_seed(7, 1, 0)
    assert [m.content for m in request.messages] == ["a", "1", "B"]
    answer(chat, request, "two")
    assert [turn.prompt for turn in chat.turns] == ["a", "B"]
    fork = chat.turns[1].fork
    assert (len(fork.items), fork.at) == (2, 1)
    assert fork.step(-1)
    assert not fork.step(-1)
    assert [turn.prompt for turn in chat.turns] == ["a", "b", "c"]
    assert sent(chat, "d") == ["a", "1", "b", "2", "c", "3", "d"]


def test_an_earlier_answer_anew_leaves_what_followed_at_the_old_one() -> None:
    chat = talk(("a", "1"), ("b", "2"), options=ChatOptions(seed=7))
    first = chat.turns[0]
    request = chat.request(turn=first)
    assert request.seed == reply_seed(7, 0, 1)
    assert [m.content for m in request.messages] == ["a"]
    answer(chat, request, "one")
    assert [turn.prompt for turn in chat.turns] == ["a"]
    assert sent(chat, "c") == ["a", "one", "c"]
    first.versions.step(-1)
    assert [turn.prompt for turn in chat.turns] == ["a", "b"]


def test_a_deleted_version_does_not_give_its_seed_away() -> None:
    chat = talk(("a", "1"), options=ChatOptions(seed=7))
    answer(chat, chat.request(), "2")
    turn = chat.turns[0]
    turn.versions.remove(turn.replies[0])
    assert chat.request().seed == reply_seed(7, 0, 2)


def test_undo_and_redo() -> None:
    chat = talk(("a", "1"), ("b", "2"))
    assert chat.undo() is not None
    assert chat.undo() is not None
    assert chat.turns == []
    assert chat.undo() is None
    assert chat.redo() is not None
    assert [turn.prompt for turn in chat.turns] == ["a"]
    chat.redo()
    assert [turn.prompt for turn in chat.turns] == ["a", "b"]
    assert chat.redo() is None
    chat.undo()
    answer(chat, chat.ask("c"), "3")
    assert chat.redo() is None
    assert [turn.prompt for turn in chat.turns] == ["a", "c"]
    assert len(chat.turns[1].fork.items) == 2


def test_continue_counts_on() -> None:
    """Same seed, tokens from where it ended; text, tokens and steps become one."""
    chat = Chat(ChatOptions(seed=3))
    answer(chat, chat.ask("a"), "one two three", stopped=True)
    before = chat.turns[0].replies[0]
    steps = len(before.steps)
    request = chat.carry_on()
    assert (request.carry_on, request.offset, request.seed) == (True, 3, before.done.seed)
    assert [m.content for m in request.messages] == ["a", "one two three"]
    answer(chat, request, " four five")
    version = chat.turns[0].replies[0]
    assert version is before
    assert (version.text, len(version.done.token_ids)) == ("one two three four five", 5)
    assert [step.index for step in version.steps] == list(range(1, len(version.steps) + 1))
    assert len(version.steps) > steps
    assert [step.at_s for step in version.steps] == sorted(step.at_s for step in version.steps)
    assert "".join(segment.text for segment in version.segments) == version.text
    assert chat.last is not None
    assert chat.last.finish_reason == "stop"


def test_continue_with_a_piece_that_was_held_back() -> None:
    """What was no whole character at the first end stands between the two parts."""
    chat = Chat(ChatOptions())
    answer(chat, chat.ask("a"), "one two", stopped=True)
    version = chat.turns[0].replies[0]
    version.done = replace(version.done, text="one two\ufffd", tail=(Segment("\ufffd", "plain", (9,)),))
    answer(chat, chat.carry_on(), " three")
    assert "".join(segment.text for segment in version.segments) == version.text == "one two\ufffd three"


def test_a_question_without_an_answer_can_be_followed() -> None:
    """After a crash before the first word."""
    chat = Chat(ChatOptions())
    chat.ask("a")
    chat.failed()
    assert [m.content for m in chat.ask("b").messages] == ["a", "", "b"]


def test_attached_files_are_sent_in_front_and_come_back() -> None:
    chat = Chat(ChatOptions())
    file = Attachment("notes.md", "# Notes\n```\ncode\n```\n")
    chat.attached = (file,)
    request = chat.ask("Sum up.")
    assert request.messages[0].content == "File notes.md:\n````\n# Notes\n```\ncode\n```\n````\n\nSum up."
    assert chat.attached == ()
    chat.failed()
    assert chat.take_back() == "Sum up."
    assert chat.attached == (file,)


@given(st.text(alphabet="`a\n", max_size=30))
def test_no_file_ends_its_own_fence(text: str) -> None:
    lines = fenced(Attachment("x", text)).split("\n")
    assert lines[1] == lines[-1]
    assert all(not line.strip().startswith(lines[1]) for line in lines[2:-1])


def test_forks() -> None:
    fork: Fork[str] = Fork()
    assert fork.chosen is None
    for letter in "abc":
        fork.add(letter)
    fork.choose("b")
    fork.remove("a")
    assert fork.chosen == "b"
    fork.remove("b")
    assert fork.chosen == "c"
    fork.remove("c")
    assert fork.chosen is None
    assert fork.at is None


class Tree(RuleBasedStateMachine):
    """Whatever a person does, the chat in the database is the chat on the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.chat = Chat(ChatOptions(seed=1))
        self.count = 0

    def word(self) -> str:
        self.count += 1
        return f"word{self.count}"

    @rule()
    def ask(self) -> None:
        answer(self.chat, self.chat.ask(self.word()), self.word())

    @rule()
    def ask_in_vain(self) -> None:
        self.chat.ask(self.word())
        self.chat.failed()
        self.chat.take_back()

    @precondition(lambda self: self.chat.turns)
    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        answer(self.chat, self.chat.ask_instead(data.draw(st.sampled_from(self.chat.turns)), self.word()), self.word())

    @precondition(lambda self: self.chat.turns)
    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        answer(self.chat, self.chat.request(turn=data.draw(st.sampled_from(self.chat.turns))), self.word())

    @precondition(lambda self: self.chat.turns and self.chat.turns[-1].answer is not None)
    @rule()
    def carry_on(self) -> None:
        answer(self.chat, self.chat.carry_on(), self.word())

    @precondition(lambda self: self.chat.turns)
    @rule(data=st.data(), by=st.sampled_from([-1, 1]), question=st.booleans())
    def turn_over(self, data: st.DataObject, by: int, question: bool) -> None:
        turn = data.draw(st.sampled_from(self.chat.turns))
        (turn.fork if question else turn.versions).step(by)

    @rule()
    def undo(self) -> None:
        self.chat.undo()

    @rule()
    def redo(self) -> None:
        self.chat.redo()

    @precondition(lambda self: self.chat.turns)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.chat.drop(data.draw(st.sampled_from(self.chat.turns)))

    @invariant()
    def the_saved_chat_is_the_same(self) -> None:
        found = Chat(ChatOptions())
        restore(found, chat_row(self.chat), message_rows(self.chat))
        assert found.markdown() == self.chat.markdown()
        assert {row.key: row for row in message_rows(found)} == {row.key: row for row in message_rows(self.chat)}
        seeds = [(turn.key, version.number) for turn in everything(self.chat.root) for version in turn.replies]
        assert len(set(seeds)) == len(seeds)


TestTree = Tree.TestCase
TestTree.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@given(
    st.lists(
        st.builds(
            Segment,
            st.text(max_size=5),
            st.sampled_from(["kept", "correction", "bonus", "plain"]),
            st.tuples(st.integers(0, 200_000)),
            st.integers(0, 9),
            st.integers(1, 50),
        ),
        max_size=30,
    )
)
def test_traces_come_back(segments: list[Segment]) -> None:
    """And do not fit another text."""
    step = Step(3, 1, tuple(segments), len(segments), 4, 2, 4, 0.001, 0.02, 0.0, 0.003, 0.5, "a note")
    text = "".join(segment.text for segment in segments)
    blob = pack((step,))
    assert unpack(blob, text, 3) == ((step,), ())
    assert unpack(blob, text + "x", 3) == ((), ())
    assert unpack(blob[:-1], text, 3)[0] in ((), (step,))
    assert unpack(b"", text, 3) == unpack(b"junk", text, 3) == ((), ())


def test_a_trace_packed_again_and_again_is_that_of_the_whole() -> None:
    chat = talk(("a", "word " * 50))
    version = chat.turns[0].replies[0]
    packer = Packer()
    for n in (1, 2, 7, len(version.steps)):
        blob = packer.pack(version.steps[:n])
        text = "".join(segment.text for step in version.steps[:n] for segment in step.segments)
        assert unpack(blob, text, 0)[0] == unpack(pack(version.steps[:n]), text, 0)[0] != ()
