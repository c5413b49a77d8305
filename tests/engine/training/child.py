"""A whole small training in a process of its own, which a test may kill: child.py TARGET OUT resume|begin QUANT."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from engine.catalog.specs import ModelSpec
from engine.protocol import Failed, LoadOptions
from engine.training import answers, loop
from engine.training.protocol import Plan, Trained
from engine.training.serve import serve
from tests.engine.training.worlds import few_seeds


def main() -> None:
    target, out, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    few_seeds(pytest.MonkeyPatch())
    loop.SAVE_EVERY_S = loop.SAY_EVERY_S = answers.SAY_EVERY_S = 0.0
    loop.BATCH, answers.POSITIONS = 256, 120
    spec = ModelSpec(target.name, path=target)
    plan = Plan(
        spec, out, name="child", options=LoadOptions(device="cpu", quant=sys.argv[4]), tokens=500, epochs=3, shortlist=120,
        precision="fp32", lanes=3, resume=how == "resume", register=False,
    )  # fmt: skip
    end = serve(
        plan, lambda event: print(type(event).__name__, getattr(event, "step", getattr(event, "texts", "")), flush=True), lambda: False
    )
    if isinstance(end, Failed):
        print(end.message, end.hint, end.detail, flush=True)
    print(type(end).__name__, flush=True)
    sys.exit(0 if isinstance(end, Trained) else 1)


main()
