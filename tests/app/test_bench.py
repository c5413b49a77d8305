"""Bench: order of lanes, equal commands, sums, what is said about texts and drift; prompts files; table, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from app.bench import WARM_UP_PROMPT, Plan, Progress, Result, measure
from app.console import Interrupt
from app.driver import Driver
from app.prompts import Prompt
from app.report import ROW_KEYS, as_csv, as_report, row
from app.report_text import as_table
from app.seeds import reply_seed
from engine.catalog.specs import NGRAM, ModelSpec
from engine.errors import EngineError
from engine.protocol import Event, Failed, Generate, Load, LoadOptions, Message, Ready, Sampling, SwapDrafter
from tests.app.fake_client import TARGET, FakeClient, done_for, steps_for

SMALL = ModelSpec("small", role="drafter")
TEMPLATE = Generate(0, messages=(Message("system", "Be short."),), sampling=Sampling(0.0), max_tokens=64)
IDS = {"one": [1, 2, 3, 4, 5, 6], "two": [7, 8, 9]}


def reply(command: Generate, ready: Ready) -> list[Event]:
    """Plain: one token a step of 20 ms. Look-up: 3 tokens a step of 30 ms, so 2x. The model: half its drafts kept."""
    ids = IDS.get(command.messages[-1].content, [1, 2, 3])
    if ready.drafter == "ngram":
        steps = steps_for(command, ids, [3] * (len(ids) // 3), 0.03, drafted=2)
    elif ready.drafter == "small":
        steps = steps_for(command, ids, [2, 1] * (len(ids) // 3), 0.02, drafted=2)
    else:
        steps = steps_for(command, ids, [1] * len(ids), 0.02, drafted=0)
    return [*steps, done_for(command, ids, ready)]


def plan(*drafters: ModelSpec, repeat: int = 1, prompts: tuple[str, ...] = ("one", "two")) -> Plan:
    return Plan(TARGET, drafters, tuple(map(Prompt, prompts)), TEMPLATE, LoadOptions(), repeat=repeat, seed=7)


def run(the_plan: Plan, client: FakeClient) -> Result:
    with Interrupt() as interrupt:
        return measure(the_plan, Driver(client, interrupt))


def test_plain_runs_first_and_last_and_every_lane_gets_the_same_commands() -> None:
    client = FakeClient(reply)
    result = run(plan(NGRAM, SMALL), client)
    assert isinstance(client.sent[0], Load)
    assert client.sent[0].drafter.name == "none"
    assert [c.drafter.name for c in client.sent if isinstance(c, SwapDrafter)] == ["none", "ngram", "small", "none"]
    replies = [c for c in client.sent if isinstance(c, Generate)]
    lanes = [replies[i : i + 3] for i in range(0, 12, 3)]
    assert [[c.messages[-1].content for c in lane] for lane in lanes] == [[WARM_UP_PROMPT, "one", "two"]] * 4
    assert [[replace(c, reply=0) for c in lane] for lane in lanes] == [[replace(c, reply=0) for c in lanes[0]]] * 4
    assert [c.seed for c in lanes[0][1:]] == [reply_seed(7, 0, 0), reply_seed(7, 1, 0)]
    assert len({c.reply for c in replies}) == len(replies)
    assert lanes[0][0].max_tokens == 32
    assert all(c.messages[0] == Message("system", "Be short.") for c in replies)
    assert [lane.title for lane in result.lanes] == ["none, first", "ngram", "small", "none, last"]


def test_rows_are_sums_over_all_replies_without_the_warm_up() -> None:
    result = run(plan(NGRAM, SMALL), FakeClient(reply))
    rows = [row(result, lane) for lane in result.lanes]
    assert [tuple(r) for r in rows] == [ROW_KEYS] * 4
    assert result.plain_tok_per_s == pytest.approx(50)
    assert [r["tok_per_s"] for r in rows] == pytest.approx([50, 100, 75, 50])
    assert [r["speedup"] for r in rows] == pytest.approx([1, 2, 1.5, 1])
    assert [r["tau"] for r in rows] == pytest.approx([1, 3, 1.5, 1])
    assert [r["kept"] for r in rows] == pytest.approx([0, 1, 0.25, 0])
    assert [r["per_position"] for r in rows] == [[], [1.0, 1.0], [0.5, 0.0], []]
    assert [r["method"] for r in rows] == ["none", "ngram", "model", "none"]
    assert all(r["same_text"] is True for r in rows)
    assert result.notes() == []


def test_a_stop_id_counts_for_tau() -> None:
    def stops(command: Generate, ready: Ready) -> list[Event]:
        return [*steps_for(command, [1, 2], [1, 1], 0.02, 0), done_for(command, [1, 2], ready, stop_id=99)]

    result = run(plan(prompts=("one",)), FakeClient(stops))
    assert row(result, result.lanes[0])["tau"] == pytest.approx(1.5)


def test_repeats_keep_plain_at_the_ends_and_all_seeds_equal() -> None:
    drafters = tuple(ModelSpec(f"d{i}", role="drafter") for i in range(6))
    client = FakeClient(reply)
    result = run(plan(*drafters, repeat=3, prompts=("one",)), client)
    names = [c.drafter.name for c in client.sent if isinstance(c, SwapDrafter)]
    rounds = [names[i : i + 8] for i in range(0, 24, 8)]
    assert all(r[0] == r[-1] == "none" for r in rounds)
    assert all(sorted(r) == sorted(rounds[0]) for r in rounds)
    assert rounds[1] != rounds[0]
    assert all(len(lane.runs) == 3 for lane in result.lanes)
    assert len({c.seed for c in client.sent if isinstance(c, Generate) and c.messages[-1].content == "one"}) == 1


def test_another_text_is_named_by_prompt_and_token() -> None:
    def cheats(command: Generate, ready: Ready) -> list[Event]:
        if ready.drafter == "small" and command.messages[-1].content == "two":
            return [*steps_for(command, [7, 1, 9], [1, 1, 1], 0.02, 1), done_for(command, [7, 1, 9], ready)]
        return reply(command, ready)

    result = run(plan(NGRAM, SMALL), FakeClient(cheats))
    assert [result.same_text(lane) for lane in result.lanes] == [True, True, False, True]
    assert result.difference(result.lanes[2]) == (2, 2)
    assert result.notes() == ["small: the text of prompt 2 differs from plain at token 2; it should not."]


def test_a_shorter_text_differs_too() -> None:
    def short(command: Generate, ready: Ready) -> list[Event]:
        if ready.drafter == "small":
            return [*steps_for(command, [1, 2], [1, 1], 0.02, 1), done_for(command, [1, 2], ready)]
        return reply(command, ready)

    result = run(plan(SMALL, prompts=("one",)), FakeClient(short))
    assert result.difference(result.lanes[1]) == (1, 3)


def test_plain_runs_that_differ_by_more_than_three_percent_are_noted() -> None:
    speeds = iter([0.02, 0.02, 0.0204, 0.0204])

    def drifts(command: Generate, ready: Ready) -> list[Event]:
        return [*steps_for(command, [1, 2, 3], [1, 1, 1], next(speeds), 0), done_for(command, [1, 2, 3], ready)]

    assert run(plan(prompts=("one",)), FakeClient(drifts)).notes() == []
    speeds = iter([0.02, 0.02, 0.022, 0.022])
    (note,) = run(plan(prompts=("one",)), FakeClient(drifts)).notes()
    assert "differ by 9%" in note
    assert "slower" in note


def test_a_lane_that_fails_keeps_its_error_and_the_others_go_on() -> None:
    client = FakeClient(reply, {"small": Failed("small has another vocabulary.", "Choose another.", "vocabulary")})
    result = run(plan(SMALL, NGRAM), client)
    rows = [row(result, lane) for lane in result.lanes]
    nothing = {"per_position": [], "if_reached": [], "tokens_per_step": [], "replies": 0, "tokens": 0}
    assert rows[1] == dict.fromkeys(ROW_KEYS) | nothing | {"drafter": "small", "error": "small has another vocabulary."}
    assert rows[2]["speedup"] == pytest.approx(2)
    assert result.notes() == ["small: small has another vocabulary. Choose another."]
    assert "failed" in as_table(as_report(result))


def test_a_target_that_does_not_load_is_an_error() -> None:
    client = FakeClient(reply, {"none": Failed("Not enough memory.", "Choose a smaller model.", "memory")})
    with pytest.raises(EngineError, match="Not enough memory"):
        run(plan(SMALL), client)


def test_a_stop_ends_with_what_was_measured() -> None:
    with Interrupt() as interrupt:

        def stopped(command: Generate, ready: Ready) -> list[Event]:
            if ready.drafter == "ngram":
                interrupt.stop()
                return [replace(done_for(command, [1], ready), finish_reason="cancelled")]
            return reply(command, ready)

        client = FakeClient(stopped)
        result = measure(plan(NGRAM, SMALL), Driver(client, interrupt))
    assert result.stopped
    assert [len(lane.runs) for lane in result.lanes] == [2, 0, 0, 0]
    assert client.stops
    assert "Stopped before the end" in as_table(as_report(result))
    assert as_report(result)["stopped"] is True


def test_progress_counts_lanes_prompts_and_tokens() -> None:
    seen: list[Progress] = []
    with Interrupt() as interrupt:
        measure(plan(NGRAM), Driver(FakeClient(reply), interrupt), seen.append)
    assert {(p.lane, p.title) for p in seen} == {(1, "none, first"), (2, "ngram"), (3, "none, last")}
    first = [p for p in seen if p.lane == 2 and p.prompt == 1]
    assert [p.tokens for p in first] == [3, 6, 6]
    assert [p.answer is not None for p in first] == [False, False, True]
    assert {(p.lane, p.row) for p in seen} == {(1, 0), (2, 1), (3, 2)}
    assert all(p.prompts == 2 and p.lanes == 3 for p in seen)


def test_the_table_is_aligned_and_says_what_the_rows_say() -> None:
    table = as_table(as_report(run(plan(NGRAM, SMALL), FakeClient(reply))))
    lines = table.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [cell.strip() for cell in lines[3].split("|")[1:10]] == [
        "ngram", "ngram", "100.0", "–", "2.00x", "3.00", "100%", "0.00 s", "yes",
    ]  # fmt: skip


def test_json_and_csv_hold_the_rows() -> None:
    result = run(plan(NGRAM, repeat=2), FakeClient(reply))
    written = json.loads(json.dumps(as_report(result)))
    assert {"machine", "versions", "settings", "rows"} <= set(written)
    assert [r["drafter"] for r in written["rows"]] == ["none", "ngram", "none"]
    assert all(set(r) == set(ROW_KEYS) for r in written["rows"])
    assert written["settings"]["target"] == "big"
    assert written["settings"]["seed"] == 7
    assert written["versions"]["typer"]
    assert len(written["replies"]) == 3 * 2 * 2
    table = list(csv.DictReader(io.StringIO(as_csv(as_report(result)))))
    assert list(table[0]) == list(ROW_KEYS)
    assert float(table[1]["speedup"]) == pytest.approx(written["rows"][1]["speedup"])
    assert table[1]["per_position"] == "1.0000 1.0000"
