"""What is known of the machine, what was measured on it, and the arithmetic of a download's progress."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine import places
from engine.catalog import hardware, measured
from engine.catalog.progress import Meter, Progress, human

# --- hardware


def test_probe() -> None:
    found = hardware.probe()
    assert found.cores >= 1
    assert found.ram > 10**8
    assert found.cpu
    assert set(found.flags) <= set(hardware.FLAGS)
    assert hardware.probe() is found


def test_nvidia_smi_output() -> None:
    text = "NVIDIA GeForce RTX 4090, 24564, 23000, 560.35\nOdd, name, 8192, 100, 1.2\nGB10, [N/A], [N/A], 580\n\nno devices\n"
    assert hardware.parse_smi(text) == (
        hardware.Gpu("NVIDIA GeForce RTX 4090", 24564 << 20, 23000 << 20, "560.35"),
        hardware.Gpu("Odd, name", 8192 << 20, 100 << 20, "1.2"),
    )
    assert hardware.parse_smi("") == ()


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("x", 5), subprocess.CalledProcessError(9, "x")])
def test_no_card_or_a_broken_driver(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert hardware.nvidia() == ()


def test_apple_silicon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(hardware.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(hardware, "nvidia", lambda: ())
    monkeypatch.setattr(hardware, "_sysctl", lambda *_: "1")
    found = hardware.probe.__wrapped__()
    assert found.device == "mps"
    assert found.gpus[0].total < found.ram


def test_nothing_here_imports_torch() -> None:
    code = (
        "import sys\nfrom engine import places\n"
        "from engine.catalog import catalog, disk, fetch, fit, hardware, headers, hub, measured, mirror, needed, progress, stored, tables\n"
        "catalog.builtin(); hardware.probe()\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'textual') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- measured


def test_remember_and_recall() -> None:
    measured.remember("t", "d", "nf4", "cpu", 1.5, 100)
    measured.remember("t", "ngram", "nf4", "cpu", 1.2, 100)
    measured.remember("t", "d", "bf16", "cpu", 9.0, 100)
    assert measured.recall("t", "nf4", "cpu") == {"d": 1.5, "ngram": 1.2}
    assert measured.recall("other", "nf4", "cpu") == {}
    measured.remember("t", "d", "nf4", "cpu", 3.0, 300)
    assert measured.recall("t", "nf4", "cpu")["d"] == pytest.approx((1.5 * 100 + 3.0 * 300) / 400)


def test_new_results_show_after_long_experience() -> None:
    for _ in range(30):
        measured.remember("t", "d", "nf4", "cpu", 1.0, 1000)
    for _ in range(20):
        measured.remember("t", "d", "nf4", "cpu", 2.0, 1000)
    assert measured.recall("t", "nf4", "cpu")["d"] > 1.9


def test_memory_is_remembered_beside_speed() -> None:
    model = Path("/models/a")
    measured.remember("t", "d", "nf4", "cpu", 1.5, 100)
    measured.remember_bytes(model, "nf4", "int8", "cpu", 1_000_000)
    assert measured.recall_bytes(model, "nf4", "int8", "cpu") == 1_000_000
    assert measured.recall_bytes(model, "nf4", "nf4", "cpu") == 0
    measured.remember("t", "d", "nf4", "cpu", 1.5, 100)
    measured.remember_bytes(model, "nf4", "int8", "cpu", 0)
    measured.remember_bytes(model, "nf4", "int8", "cpu", 1_002_000)  # the same, but for noise: the file is not written again
    assert measured.recall_bytes(model, "nf4", "int8", "cpu") == 1_000_000
    measured.remember_bytes(model, "nf4", "int8", "cpu", 800_000)
    assert measured.recall_bytes(model, "nf4", "int8", "cpu") == 800_000
    assert measured.recall("t", "nf4", "cpu") == {"d": 1.5}


@pytest.mark.parametrize("speedup", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_is_not_remembered(speedup: float) -> None:
    measured.remember("t", "d", "nf4", "cpu", speedup, 100)
    measured.remember("t", "d", "nf4", "cpu", 1.5, 0)
    assert measured.recall("t", "nf4", "cpu") == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 99, "speedups": {}}', '{"version": 1, "speedups": {"t|nf4|cpu": {"d": "x"}}}', "\ud800"]
)
def test_a_broken_file_is_as_good_as_none(text: str) -> None:
    path = places.data_dir() / "measured.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert measured.recall("t", "nf4", "cpu") == {}
    assert measured.recall_bytes(path, "nf4", "int8", "cpu") == 0
    measured.remember("t", "d", "nf4", "cpu", 1.5, 100)
    assert measured.recall("t", "nf4", "cpu") == {"d": 1.5}
    assert json.loads(path.read_text())["version"] == 1
    assert len(list(places.data_dir().iterdir())) == 1


def test_an_unwritable_folder_raises_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("SPECCHAT_HOME", str(home / "file"))
    measured.remember("t", "d", "nf4", "cpu", 1.5, 100)
    assert measured.recall("t", "nf4", "cpu") == {}


# --- progress


def meter() -> tuple[Meter, list[Progress], list[float]]:
    seen: list[Progress] = []
    now = [0.0]
    counter = Meter("hub", seen.append, lambda: now[0])
    counter.total = 1000
    return counter, seen, now


def test_rate_and_time_left() -> None:
    counter, seen, now = meter()
    for second in range(5):
        now[0] = float(second)
        counter.at(second * 100, "f")
    assert seen[-1] == Progress("f", 400, 1000, 100.0, 6.0, "hub")
    assert seen[0].left_s is None


def test_the_rate_follows_the_line() -> None:
    counter, seen, now = meter()
    for second in range(20):
        now[0] = float(second)
        counter.at(second * 10 if second < 10 else 100 + (second - 10) * 50, "f")
    assert seen[-1].rate == pytest.approx(50)


def test_a_stall_is_said_and_ends() -> None:
    counter, seen, now = meter()
    counter.at(100, "f", "part 1 of 2")
    for second in range(1, 13):
        now[0] = float(second)
        counter.still()
        assert seen[-1].state == ("stalled" if second >= 5 else "")
    assert seen[-1].note == "stalled: nothing has come for 12 s (part 1 of 2)"
    assert (seen[-1].done, seen[-1].rate, seen[-1].left_s) == (100, 0.0, None)
    counter.at(101, "f", "retrying: the connection broke")
    now[0] = 30.0
    counter.still()
    assert (seen[-1].state, seen[-1].note) == ("retrying", "retrying: the connection broke")
    counter.at(101, "f", "checking")
    now[0] = 60.0
    counter.still()
    assert (seen[-1].state, seen[-1].note) == ("", "checking")
    counter.at(200, "f", "part 1 of 2")
    assert (seen[-1].state, seen[-1].note) == ("", "part 1 of 2")


def test_mere_bytes_are_told_rarely_and_notes_at_once() -> None:
    counter, seen, now = meter()
    for i in range(100):
        now[0] = i / 100
        counter.at(i, "f")
    assert 8 <= len(seen) <= 12
    counter.at(100, "f", "checking")
    assert seen[-1].note == "checking"
    counter.at(1000, "f", "checking")
    assert seen[-1].done == 1000


def test_a_file_that_starts_over_has_no_negative_rate() -> None:
    counter, seen, now = meter()
    counter.at(500, "f")
    now[0] = 1.0
    counter.at(10, "f")
    assert seen[-1].rate == 0
    assert seen[-1].left_s is None


def test_human() -> None:
    assert [human(n) for n in (0, 999, 1500, 98_362_432, 1_117_320_768)] == ["0 bytes", "999 bytes", "2 kB", "98 MB", "1.1 GB"]
