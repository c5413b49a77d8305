"""Rotary tables are the same in every process, and right."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from engine.decoder.config import Rope
from engine.decoder.rope import RopeTable

PARALLEL = """
import sys
import numpy as np
import engine.decoder.{module}
assert 'engine.first_call' in sys.modules
import torch
torch.set_num_threads(2)
angles = torch.arange(266_304, dtype=torch.float32) / 100
for name in ("cos", "exp", "log"):
    x = angles if name == "cos" else 1.0 + angles / 1000
    found, wanted = getattr(torch, name)(x), getattr(np, name)(x.numpy().astype(np.float64))
    print(name, float(np.abs(found.numpy() - wanted).max() / np.abs(wanted).max()))
"""


@pytest.mark.parametrize("theta", [10_000.0, 1e6])
def test_every_angle_is_right(theta: float) -> None:
    table = RopeTable(Rope("default", theta, 64), None, 4096, 4161, torch.device("cpu"), torch.float32)  # type: ignore[arg-type]
    assert table.cos.shape == table.sin.shape == (4161, 64)
    frequencies = (1.0 / theta ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64)).tolist()
    for position in (0, 1, 63, 2080, 4160):
        for i in (0, 1, 17, 31):
            angle = float(torch.tensor(float(position)) * torch.tensor(frequencies[i]))
            assert table.cos[position, i] == table.cos[position, 32 + i] == pytest.approx(math.cos(angle), abs=1e-7)
            assert -table.sin[position, i] == table.sin[position, 32 + i] == pytest.approx(math.sin(angle), abs=1e-7)


@pytest.mark.parametrize("module", ["opened", "load", "hf", "rope"])
def test_the_first_functions_of_a_process_are_exact(module: str) -> None:
    """The library behind torch sets itself up in its first call; one that two threads make together may be wrong in one half."""
    for _ in range(3):
        run = subprocess.run([sys.executable, "-c", PARALLEL.format(module=module)], capture_output=True, text=True, check=True)
        errors = {name: float(error) for name, error in (line.split() for line in run.stdout.splitlines())}
        assert set(errors) == {"cos", "exp", "log"}
        assert max(errors.values()) < 1e-6, errors
