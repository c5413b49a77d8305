"""kill -9 while data are made and while heads are trained; resumed, the weights have the bits of an uninterrupted run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

from engine.decoder import linear
from tests.tiny_disk import tiny_model

ROOT = Path(__file__).parents[3]
EXACT = linear.own_kernels()  # else a reply's last bits depend on what shares a pass, so data are not made twice alike


def start(home: Path, target: Path, out: Path, how: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SPECCHAT_HOME": str(home), "OMP_NUM_THREADS": "1"}
    child = Path(__file__).with_name("child.py")
    return subprocess.Popen(
        [sys.executable, str(child), str(target), str(out), how, "int8" if EXACT else "fp32"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_at(process: subprocess.Popen[str], word: str, least: int) -> None:
    """End it at once when it says that so much of something is done."""
    assert process.stdout is not None
    for line in process.stdout:
        name, _, number = line.strip().partition(" ")
        if name == word and number.isdigit() and int(number) >= least:
            process.send_signal(signal.SIGKILL)
            break
    else:
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, out[-2000:] + errors[-2000:]
    return out.splitlines()


def test_a_killed_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    target = tiny_model(tmp_path / "target", 4, head_dim=32)
    whole = start(tmp_path / "home1", target, tmp_path / "whole", "begin")
    child = start(tmp_path / "home2", target, tmp_path / "killed", "begin")
    work = tmp_path / "killed" / "work"
    if EXACT:
        kill_at(child, "Answering", 12)
        assert not (work / "checkpoint.safetensors").exists()
        assert list((work / "data").glob("*.safetensors"))
        child = start(tmp_path / "home2", target, tmp_path / "killed", "resume")
    kill_at(child, "Learning", 4)
    assert (work / "checkpoint.safetensors").exists()
    assert not (tmp_path / "killed" / "config.json").exists()
    said = finish(start(tmp_path / "home2", target, tmp_path / "killed", "resume"))
    steps = [int(line.split()[1]) for line in said if line.startswith("Learning")]
    assert steps[0] >= 4  # it did not begin again
    assert finish(whole)[-1] == "Trained"
    weights = [torch.load(tmp_path / name / "hydra_lm_head.pt", weights_only=True) for name in ("whole", "killed")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    states = [(tmp_path / name / "work" / "checkpoint.safetensors").read_bytes() for name in ("whole", "killed")]
    assert states[0] == states[1]  # weights in float32, the optimiser's state, the progress
