"""How near two tokens were: the target's logits behind a part of a reply, through the session; nothing is changed by the question."""

from __future__ import annotations

from engine.protocol import Generate, Weigh
from tests.engine.test_session import GREEDY, Chat
from tests.tiny import tiny_target


def test_the_greedy_pick_weighs_most_and_the_chat_goes_on_as_if_nothing_had_been_asked() -> None:
    asked, silent = Chat(tiny_target(3, context=600)), Chat(tiny_target(3, context=600))
    first, other = (chat.ask("hello there", sampling=GREEDY) for chat in (asked, silent))
    prompt = Generate(0, messages=tuple(asked.messages[:1]))
    everything = tuple(range(32))
    for n in (0, 3, len(first.token_ids) - 1):
        logits = asked.session.weigh(Weigh(prompt, first.token_ids[:n], everything), lambda: False)
        assert len(logits) == 32
        assert logits.index(max(logits)) == first.token_ids[n]
        swapped = asked.session.weigh(Weigh(prompt, first.token_ids[:n], (5, first.token_ids[n])), lambda: False)
        assert swapped == (logits[5], logits[first.token_ids[n]])
    assert asked.ask("and more", sampling=GREEDY).token_ids == silent.ask("and more", sampling=GREEDY).token_ids
    assert first.token_ids == other.token_ids


def test_a_stopped_question_has_no_answer() -> None:
    chat = Chat(tiny_target(3, context=600))
    assert chat.session.weigh(Weigh(Generate(0, raw="a long prompt " * 30), (), (1, 2)), lambda: True) == ()
