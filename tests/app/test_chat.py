"""The conversation as data: messages, seeds, versions, prompts that come back, trimming."""

from __future__ import annotations

from dataclasses import replace

from app.chat import Chat, ChatOptions
from app.seeds import reply_seed
from engine.protocol import Done, FinishReason, Generate, Message
from engine.trace import DONE


def answer(request: Generate, text: str, finish: FinishReason = "stop", trimmed: int = 0) -> Done:
    return replace(DONE, reply=request.reply, text=text, finish_reason=finish, trimmed=trimmed)


def test_messages_and_versions() -> None:
    """Each request carries system and all turns; a new version leaves out the answer that it replaces."""
    chat = Chat(ChatOptions(system="Be short.", seed=5))
    first = chat.ask("one?")
    assert first.messages == (Message("system", "Be short."), Message("user", "one?"))
    assert first.seed == reply_seed(5, 0, 0)
    assert chat.finished(answer(first, "One."))
    second = chat.ask("two?")
    assert [m.content for m in second.messages] == ["Be short.", "one?", "One.", "two?"]
    assert second.seed == reply_seed(5, 1, 0)
    assert chat.finished(answer(second, "Two."))
    again = chat.request()
    assert again.messages == second.messages
    assert again.seed == reply_seed(5, 1, 1)
    assert again.reply not in (first.reply, second.reply)
    chat.finished(answer(again, "Two, again."))
    assert [m.content for m in chat.ask("three?").messages][-2:] == ["Two, again.", "three?"]


def test_seed_rule() -> None:
    """Fixed seeds mix turn and version, stably; without a seed each is fresh. The values are part of saved chats."""
    assert reply_seed(7, 0, 0) == 4895008828178295159
    assert len({reply_seed(7, turn, version) for turn in range(30) for version in range(30)}) == 900
    assert len({reply_seed(None, 0, 0) for _ in range(50)}) == 50
    assert all(0 <= reply_seed(seed, 1, 2) < 2**63 for seed in (None, 0, 2**63 - 1))


def test_prompt_comes_back() -> None:
    """A failed or empty reply gives the prompt back; a partial one stays in the conversation."""
    chat = Chat(ChatOptions())
    chat.ask("one?")
    chat.failed()
    assert chat.take_back() == "one?"
    assert not chat.turns
    empty = chat.ask("two?")
    assert not chat.finished(answer(empty, "", "cancelled"))
    assert chat.take_back() == "two?"
    part = chat.ask("three?")
    assert chat.finished(answer(part, "Well", "cancelled"))
    assert chat.take_back() is None
    chat.request()
    chat.failed()
    assert chat.take_back() is None
    assert chat.last is not None
    assert chat.last.text == "Well"


def test_trimmed_messages_stay_out() -> None:
    """What was dropped with the person's consent is not sent again, and the newest question always is."""
    chat = Chat(ChatOptions(system="S"))
    for n in range(3):
        chat.finished(answer(chat.ask(f"q{n}"), f"a{n}"))
    request = chat.ask("q3")
    chat.failed()
    request = chat.request(trim=True)
    assert request.trim
    chat.finished(answer(request, "a3", trimmed=4))
    assert [m.content for m in chat.ask("q4").messages] == ["S", "q2", "a2", "q3", "a3", "q4"]
    chat.failed()
    chat.dropped = 99
    assert [m.content for m in chat.request().messages] == ["S", "q4"]


def test_settings_reach_the_request() -> None:
    chat = Chat(ChatOptions(k=3, strict=True, verify="ratio", max_tokens=9, stop=("END",)))
    request = chat.ask("x")
    assert (request.k, request.strict, request.verify, request.max_tokens, request.stop) == (3, True, "ratio", 9, ("END",))


def test_markdown_export() -> None:
    chat = Chat(ChatOptions())
    chat.finished(answer(chat.ask("q"), "a\x1b"))
    assert chat.markdown() == "**You**\n\nq\n\n**Reply**\n\na\x1b\n"
