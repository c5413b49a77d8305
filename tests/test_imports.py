"""Who may import what (DESIGN 3): `app` and the torch-free part of `engine` never torch, `engine` never textual. In processes of
their own, since pytest itself has imported who knows what."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "tokenizers", "bitsandbytes", "accelerate", "safetensors", "numpy")
SCREEN = ("textual", "typer", "rich", "app")
LIGHT = ("client", "protocol", "replay", "trace", "stats", "errors", "places", "catalog")


def modules(package: str) -> list[str]:
    """All modules of a package, by the files that are there."""
    files = sorted((ROOT / package).rglob("*.py"))
    return [".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f in files]


def imported(names: list[str]) -> set[str]:
    """The top packages that importing these modules brings in."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*{n.split('.')[0] for n in sys.modules})"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code, *names], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_app_imports_nothing_heavy() -> None:
    names = modules("app")
    assert {"app.cli", "app.run", "app.bench", "app.doctor"} <= set(names)
    assert imported(names) & set(HEAVY) == set()


def test_the_light_side_of_the_engine_imports_nothing_heavy() -> None:
    names = [name for name in modules("engine") if name.split(".")[1:2] and name.split(".")[1] in LIGHT]
    assert {"engine.client", "engine.catalog.hub", "engine.replay"} <= set(names)
    assert imported(names) & set(HEAVY) == set()


def test_the_engine_imports_nothing_of_the_screen() -> None:
    """Read from the text, for all of it at once: torch takes seconds to import, and typer comes in through other packages."""
    for name in modules("engine"):
        file = ROOT / Path(*name.split("."))
        text = (file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text(encoding="utf-8")
        words = [line.split()[1].split(".")[0] for line in map(str.strip, text.splitlines()) if line.startswith(("import ", "from "))]
        assert not set(words) & set(SCREEN), name


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"], ["run", "x", "--quant", "q4"]])
def test_short_commands_import_neither_torch_nor_textual(arguments: list[str]) -> None:
    code = f"import sys\nfrom app.cli import invoke\ninvoke({arguments!r})\nprint('|', *{{n.split('.')[0] for n in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True
    )
    assert not set(run.stdout.rpartition("|")[2].split()) & {*HEAVY, "textual", "huggingface_hub"}
