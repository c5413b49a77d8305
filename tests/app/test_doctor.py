"""`specchat doctor`: facts, what follows from them, and folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app import doctor
from app.cli import invoke
from app.doctor import install, place, possible
from engine.catalog.hardware import Gpu, Hardware
from engine.errors import EngineError
from engine.installed import Installed

CPU = Hardware("Linux 6", "A CPU", 8, ("avx2",), 16 << 30)
CARD = Hardware("Windows 11", "A CPU", 8, ("avx2",), 32 << 30, (Gpu("RTX 4070", 12 << 30, 11 << 30, "581.20"),), "cuda")
FOUND = Installed("2.13.0", bitsandbytes=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def test_nothing_to_install_where_all_is_there() -> None:
    assert install(CPU, FOUND) == []
    assert install(CARD, replace(FOUND, cuda_build="13.0", cuda=True)) == []


def test_a_cpu_build_next_to_an_nvidia_card_is_named_with_the_command() -> None:
    (advice,) = install(CARD, FOUND)
    assert "RTX 4070" in advice["reason"]
    assert "CPU only" in advice["reason"]
    assert "download.pytorch.org/whl/cu130" in advice["command"]
    assert "torch>=2.10,<2.14" in advice["command"]


def test_the_command_asks_for_the_torch_that_the_project_asks_for() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"torch>=2.10,<2.14"' in project
    assert '"bitsandbytes>=0.50.2"' in project
    assert '"bitsandbytes>=0.50.2"' in doctor.BNB_FIX


def test_a_card_that_torch_cannot_use_is_named_with_the_driver() -> None:
    (advice,) = install(CARD, replace(FOUND, cuda_build="13.0", cuda_error="The NVIDIA driver is too old"))
    assert "driver is too old" in advice["reason"]
    assert "581.20" in advice["reason"]
    assert "cu126" in advice["command"]


def test_missing_packages_are_named_with_the_command() -> None:
    (advice,) = install(CPU, replace(FOUND, bitsandbytes=False, errors=("bitsandbytes cannot be imported: OSError: no library",)))
    assert "no library" in advice["reason"]
    assert "bitsandbytes" in advice["command"]
    (advice,) = install(CPU, replace(FOUND, torch=None, bitsandbytes=False, errors=("torch cannot be imported: ImportError: x",)))
    assert "torch" in advice["command"]


@pytest.mark.parametrize(
    ("found", "yes"),
    [
        (FOUND, {"cpu", "bf16", "int8"}),
        (replace(FOUND, kernels="avx2"), {"cpu", "bf16", "int8", "nf4"}),
        (replace(FOUND, kernels="avx2", bitsandbytes=False), {"cpu", "bf16", "int8", "nf4"}),
        (replace(FOUND, cuda=True, bitsandbytes=False), {"cpu", "bf16", "int8", "cuda"}),
        (replace(FOUND, cuda=True), {"cpu", "bf16", "int8", "nf4", "cuda"}),
        (replace(FOUND, mps=True), {"cpu", "bf16", "int8", "mps"}),
        (replace(FOUND, torch=None, kernels="avx2"), set()),
    ],
)
def test_what_is_possible_follows_from_the_facts(found: Installed, yes: set[str]) -> None:
    assert {key for key, can in possible(found).items() if can} == yes


def test_places_say_whether_they_can_be_written(home: Path) -> None:
    good = place("data", lambda: home)
    assert (good["writable"], good["problem"]) == (True, "")
    assert good["free"] > 0
    later = place("hub cache", lambda: home / "not" / "there" / "yet")
    assert later["writable"]
    assert not (home / "not").exists(), "looking makes nothing"

    def locked() -> Path:
        raise EngineError("The folder X cannot be written (no permission).", kind="unwritable")

    bad = place("logs", locked)
    assert (bad["writable"], bad["problem"]) == (False, "The folder X cannot be written (no permission).")


def test_json_and_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor.installed, "ask", lambda: FOUND)
    monkeypatch.setattr(doctor.hardware, "probe", lambda: CARD)
    assert invoke(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts) == {"hardware", "versions", "torch", "possible", "install", "places"}
    assert facts["hardware"]["gpus"][0]["name"] == "RTX 4070"
    assert facts["versions"]["transformers"]
    assert len(facts["install"]) == 1
    assert invoke(["doctor"]) == 0
    out = capsys.readouterr().out
    for heading in ("MACHINE", "VERSIONS", "POSSIBLE", "TO INSTALL", "PLACES"):
        assert heading in out.splitlines()
    assert facts["install"][0]["command"] in out


def test_an_unwritable_place_is_shown(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor.installed, "ask", lambda: FOUND)
    (home / "cache").write_text("in the way")
    assert invoke(["doctor"]) == 0
    assert "CANNOT BE WRITTEN" in capsys.readouterr().out
