"""What the target would read: the exact prompt, and the template's switch for thoughts."""

from __future__ import annotations

from pathlib import Path

from engine.decoder.tokenizer import load_tokenizer
from engine.protocol import Generate, Look, Message, Notice
from tests.engine.decoder.test_tokenizer import ASK, _folder
from tests.engine.test_session import GREEDY, Chat, Letters, target

SWITCH = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% if enable_thinking is defined and not enable_thinking %}<none>{% endif %}{% endif %}"
)


def test_a_look_is_the_prompt_and_changes_nothing() -> None:
    chat = Chat(target())
    chat.ask("hello", sampling=GREEDY, max_tokens=5)
    held, length = list(chat.session._ids), chat.session.target.length
    text, tokens, reused = chat.session.look(Look(Generate(0, tuple(chat.messages), carry_on=True)))
    assert text == "u.hello\na." + chat.messages[-1].content
    assert tokens == len(text)
    assert reused == min(length, tokens - 1)
    assert (chat.session._ids, chat.session.target.length) == (held, length)
    assert chat.session.look(Look(Generate(0, raw="other")))[:2] == ("other", 5)


def test_a_look_at_a_prompt_that_is_too_long_is_no_error() -> None:
    chat = Chat(target())
    words = "e" * (chat.session.target.context + 50)
    assert chat.session.look(Look(Generate(0, (Message("user", words),))))[1] > chat.session.target.context


def test_the_switch_for_thoughts(tmp_path: Path) -> None:
    """It reaches the template, and is left out where nobody asks."""
    tokenizer = load_tokenizer(_folder(tmp_path / "m", template=SWITCH))
    assert tokenizer.has_switch
    assert not load_tokenizer(_folder(tmp_path / "n")).has_switch
    assert [tokenizer.text(ASK, think=wish)[-6:] for wish in (None, True, False)] == ["tant: ", "tant: ", "<none>"]
    assert tokenizer.render([*ASK, Message("assistant", "x")], carry_on=True, think=False) != tokenizer.render(
        [*ASK, Message("assistant", "x")], carry_on=True
    )


def test_a_template_without_the_switch_says_so_once() -> None:
    class Plain(Letters):
        name, has_switch = "big", False

        def render(self, messages, carry_on=False, think=None):  # type: ignore[no-untyped-def]
            return super().render(messages, carry_on)

    chat = Chat(target())
    chat.session.tokenizer = Plain()  # type: ignore[assignment]
    said = []
    for _ in range(2):
        chat.ask("hello", sampling=GREEDY, max_tokens=3, think=False)
        said += [event.text for event in chat.events if isinstance(event, Notice) and "switch for thoughts" in event.text]
    assert said == ["The chat template of big has no switch for thoughts: /think on and off change nothing."]
