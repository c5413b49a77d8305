"""The command line on two real models, as a person runs it: the same text with any drafter, exact JSON, a bench, Ctrl+C.

`SPECCHAT_HOME` holds the models: `specchat pull smollm2-135m qwen2.5-coder-0.5b`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_cli_process import read_until

pytestmark = [pytest.mark.real, pytest.mark.quick]
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from app.cli import main; main()"]
LIMIT_S = 900  # of one command; a machine that is shared with others may be very slow
PROMPT = "Repeat this sentence three times: The quick brown fox jumps over the lazy dog near the river bank."
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes]) -> bytes:
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err.decode()
    return out


def answer(*arguments: str) -> dict[str, Any]:
    return dict(json.loads(finish(start("run", PROMPT, "--offline", "--max-tokens", "48", "--json", *arguments))))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_text_is_the_same_with_look_up_and_without(model: str, temperature: str) -> None:
    plain, drafted = (answer("-t", model, "-d", d, "--temp", temperature, "--seed", "11") for d in ("none", "ngram"))
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["text"] == plain["text"]
    assert (plain["method"], drafted["method"]) == ("none", "ngram")
    assert plain["stats"]["tau"] == 1.0
    for one in (plain, drafted):
        assert one["tokens"] == len(one["token_ids"]) > 0
        assert "".join(segment["text"] for segment in one["segments"]) == one["text"]
        assert [t for segment in one["segments"] for t in segment["token_ids"]] == one["token_ids"]
        stats = one["stats"]
        assert stats["tok_per_s"] == pytest.approx(one["tokens"] / stats["decode_s"])
        assert stats["accepted"] == round(stats["kept"] * stats["drafted"])
        assert 0 < stats["draft_s"] + stats["verify_s"] + stats["bridge_s"] + stats["other_s"] <= stats["decode_s"] * 1.05


def test_stdout_is_the_text_of_the_json() -> None:
    text = answer("-t", MODELS[0], "--seed", "3")["text"]
    assert finish(start("run", PROMPT, "--offline", "--max-tokens", "48", "-t", MODELS[0], "--seed", "3")) == text.encode()


def test_bench_finds_the_same_text_in_every_lane(tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.json"
    prompts.write_text(json.dumps({"prompt": PROMPT}) + '\n{"prompt": "What is a lighthouse?"}\n')
    table = finish(
        start("bench", "-t", MODELS[0], "-d", "ngram", "--prompts", str(prompts), "--max-tokens", "32", "--json", str(out), "--offline")
    )
    rows = json.loads(out.read_text())["rows"]
    assert [(row["drafter"], row["same_text"]) for row in rows] == [("none", True), ("ngram", True), ("none", True)]
    assert all(row["tok_per_s"] > 0 for row in rows)
    assert rows[1]["method"] == "ngram"
    assert b"| ngram" in table


def test_another_vocabulary_drafts_through_the_bridge() -> None:
    process = start("run", "Hi", "-t", MODELS[1], "-d", MODELS[0], "--offline", "--max-tokens", "4", "--temp", "0", "--json")
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    answer = json.loads(out)
    assert (answer["drafter"], answer["method"]) == (MODELS[0], "slem")
    plain = start("run", "Hi", "-t", MODELS[1], "-d", "none", "--offline", "--max-tokens", "4", "--temp", "0", "--json")
    assert json.loads(plain.communicate(timeout=LIMIT_S)[0])["token_ids"] == answer["token_ids"]


def test_a_prompt_that_is_too_long_is_refused_with_the_numbers(tmp_path: Path) -> None:
    process = start("run", "word " * 3000, "-t", MODELS[0], "-d", "none", "--context", "512", "--offline", "--json")
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    error = json.loads(out)["error"]
    assert error["kind"] == "too_long"
    assert b"512" in err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_ctrl_c_keeps_what_was_written() -> None:
    process = start("run", "Count from one to five hundred in words.", "-t", MODELS[0], "-d", "none", "--offline", "--temp", "0")
    assert process.stdout is not None
    first = read_until(process.stdout.fileno(), b" ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (first + out).decode()
    assert b"Traceback" not in err
