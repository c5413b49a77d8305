"""Reports: intervals, tasks, the document, the picture; the folder where they are kept."""

from __future__ import annotations

import csv
import io
import json
import stat
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from app import results
from app.bench import Plan, Result, measure
from app.console import Interrupt
from app.driver import Driver
from app.intervals import rate_interval, speedup_interval
from app.prompts import Prompt
from app.report import STEP_KEYS, as_report, steps_csv
from app.report_svg import as_svg
from app.report_text import as_markdown
from engine.catalog.specs import NGRAM, ModelSpec
from engine.errors import EngineError
from engine.protocol import Event, Generate, LoadOptions, Ready, Sampling
from tests.app.fake_client import TARGET, FakeClient, done_for, steps_for

ODD = ModelSpec("<odd> & [bold]\x1b", role="drafter")
PROMPTS = tuple(Prompt(f"{task} {n}", task) for task in ("code", "story") for n in range(3))


def reply(command: Generate, ready: Ready) -> list[Event]:
    """Plain: 50 tokens/s. A drafter: twice as fast in code, in stories a little slower than plain."""
    ids = list(range(8))
    text = command.messages[-1].content
    if ready.drafter == "none":
        steps = steps_for(command, ids, [1] * 8, 0.02, drafted=0)
    elif text.startswith("story"):
        steps = steps_for(command, ids, [1] * 8, 0.025 if text.endswith("0") else 0.022, drafted=2)
    else:
        steps = steps_for(command, ids, [2] * 4, 0.02, drafted=2)
    return [*steps, done_for(command, ids, ready)]


def run(*drafters: ModelSpec, repeat: int = 1, prompts: tuple[Prompt, ...] = PROMPTS, plain_again: bool = True) -> Result:
    template = Generate(0, sampling=Sampling(0.0), max_tokens=64)
    plan = Plan(TARGET, drafters, prompts, template, LoadOptions(), repeat=repeat, plain_again=plain_again)
    return measure(plan, Driver(FakeClient(reply), Interrupt()))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path


def test_intervals_hold_the_mean_and_narrow_with_agreement() -> None:
    """Equal prompts leave no doubt; different ones do; the same numbers give the same interval; two prompts give none."""
    equal = dict.fromkeys(range(5), (100, 2.0))
    assert rate_interval(equal) == pytest.approx((50.0, 50.0))
    spread = {n: (100, 1.0 + n) for n in range(5)}
    low, high = rate_interval(spread) or (0.0, 0.0)
    assert low < 500 / 15 < high
    assert high - low > 10
    assert rate_interval(spread) == (low, high)
    assert rate_interval({n: spread[n] for n in range(2)}) is None


def test_speedup_is_paired_by_prompt() -> None:
    """A drafter that halves the time of every prompt is sure to be twice as fast, however much the prompts differ."""
    plain = {n: (100, 1.0 + n) for n in range(5)}
    twice = {n: (100, (1.0 + n) / 2) for n in range(5)}
    assert speedup_interval(twice, plain) == pytest.approx((2.0, 2.0))
    assert speedup_interval({9: (1, 1.0)} | twice, plain) == pytest.approx((2.0, 2.0))
    assert speedup_interval({0: (1, 0.0)}, plain) is None


def test_tasks_are_measured_apart() -> None:
    report = as_report(run(NGRAM))
    found = {row["task"]: row for row in report["tasks"] if row["drafter"] == "ngram"}
    assert found["code"]["speedup"] == pytest.approx(2.0)
    assert 0.8 < found["story"]["speedup"] < 0.95
    assert found["story"]["speedup_low"] < found["story"]["speedup"] <= found["story"]["speedup_high"]
    whole = next(row for row in report["rows"] if row["drafter"] == "ngram")
    assert found["story"]["speedup"] < whole["speedup"] < found["code"]["speedup"]
    assert whole["tokens_per_step"] == [0, 24, 12]
    assert report["rows"][0]["speedup_low"] is None
    one_kind = as_report(run(NGRAM, prompts=PROMPTS[:3]))
    assert one_kind["tasks"] == []


def test_repeats_of_a_prompt_count_as_one_prompt() -> None:
    two = tuple(prompt for prompt in PROMPTS if prompt.text.endswith("1"))
    report = as_report(run(NGRAM, repeat=5, prompts=two))
    assert report["rows"][1]["replies"] == 10
    assert report["rows"][1]["tok_per_s_low"] is None


def test_one_plain_lane_is_enough() -> None:
    result = run(NGRAM, plain_again=False)
    assert [lane.title for lane in result.lanes] == ["none", "ngram"]
    assert as_report(result)["rows"][1]["speedup"] > 1
    assert result.notes() == []


def test_the_document_says_what_the_rows_say() -> None:
    report = as_report(run(NGRAM, ODD))
    text = as_markdown(report)
    assert "| ngram" in text
    assert "## Speed-up by task" in text
    assert "2.00x (2.00–2.00)" in text
    assert "## Drafts kept by position" in text
    assert "6 prompts x 1" in text


def test_the_picture_is_svg_and_names_every_lane() -> None:
    """Well-formed, every lane named, a bar for each, whiskers where there are intervals, nothing executed or fetched."""
    picture = as_svg(as_report(run(NGRAM, ODD)))
    root = ElementTree.fromstring(picture)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert set(tags) == {"svg", "rect", "path", "text"}
    assert {"none, first", "none, last", "ngram", "<odd> & [bold]␛"} <= set(texts)
    assert {"Tokens per second", "Speed-up: code", "Speed-up: story"} <= set(texts)
    assert tags.count("rect") == 1 + 4 + 2 * 2
    assert all("http" not in value for element in root.iter() for value in element.attrib.values())


def test_a_picture_of_nothing_is_a_picture() -> None:
    report = as_report(run(NGRAM))
    rows = [row | {"tok_per_s": None, "error": "No."} for row in report["rows"]]
    ElementTree.fromstring(as_svg(report | {"rows": rows, "tasks": []}))
    assert "failed" in as_markdown(report | {"rows": rows})


def test_saved_results_are_private_listed_and_read_again(home: Path) -> None:
    result = run(NGRAM)
    report = as_report(result)
    first, second = results.save(report, steps_csv(result)), results.save(report)
    assert first != second
    assert {file.name for file in first.iterdir()} == {"report.json", "report.md", "summary.csv", "report.svg", "steps.csv"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in first.iterdir()} == {0o600}
    assert {stat.S_IMODE(place.stat().st_mode) for place in (first, first.parent)} == {0o700}
    (results.folder() / "broken").mkdir()
    (results.folder() / "broken" / "report.json").write_text("{")
    found = results.entries()
    assert {entry.folder for entry in found} == {first, second}
    assert found[0].report == json.loads(json.dumps(report))
    results.delete(found[0])
    assert len(results.entries()) == 1


def test_steps_are_one_row_each() -> None:
    rows = list(csv.DictReader(io.StringIO(steps_csv(run(NGRAM, repeat=2)))))
    assert list(rows[0]) == list(STEP_KEYS)
    assert len(rows) == 2 * (8 * 6 * 2 + (4 * 3 + 8 * 3))
    assert {row["repeat"] for row in rows} == {"1", "2"}


def test_a_full_disk_is_a_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "write", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(EngineError, match="No space left") as caught:
        results.save(as_report(run(NGRAM)))
    assert caught.value.kind == "disk_full"


def test_a_lane_that_lost_its_prompt_still_reports() -> None:
    """A drafter that failed in the second round keeps the numbers of the first."""
    result = run(NGRAM)
    result.lanes[1].error = EngineError("It broke.")
    report = as_report(replace(result))
    assert report["rows"][1]["error"] == "It broke."
    assert report["rows"][1]["speedup"] > 1
