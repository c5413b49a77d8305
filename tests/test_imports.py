"""Who may import what (DESIGN 3): `app` and the torch-free part of `engine` never torch, `engine` never textual; and what the first frame
does without. Read from the text, for what is imported late; and in processes of their own, for what others bring in, since pytest itself
has imported who knows what."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "tokenizers", "bitsandbytes", "accelerate", "safetensors", "numpy")
SCREEN = ("textual", "typer", "rich", "app")
CHAT_SCREENS = ("chat", "ask", "failures", "lists", "place", "text")  # what the chat is made of, and questions over it
LATE = (
    *("app.bench", "app.driver", "app.ground", "app.picks", "app.pull", "app.store", "app.trial", "app.widgets.formatted"),
    *("engine.catalog.fetch", "engine.catalog.hardware", "engine.catalog.hub", "engine.replay", "engine.thread"),
    *("filelock", "http.client", "huggingface_hub", "markdown_it", "psutil", "pygments.lexer", "sqlite3", "urllib.request"),
)
LIGHT = ("client", "protocol", "replay", "trace", "stats", "errors", "places", "installed", "catalog")


def modules(package: str) -> list[str]:
    """All modules of a package, by the files that are there."""
    files = sorted((ROOT / package).rglob("*.py"))
    return [".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f in files]


def imported(names: list[str]) -> set[str]:
    """The top packages that importing these modules brings in."""
    return {name.split(".")[0] for name in loaded(names)}


def loaded(names: list[str]) -> set[str]:
    """All modules that importing these brings in."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code, *names], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def written(text: str) -> set[str]:
    """The top packages that a source imports anywhere: at the top, in functions, and in texts that are programs for a child."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import" in node.value:
            with suppress(SyntaxError):
                found |= written(node.value)
    return found


@pytest.mark.parametrize(
    "text",
    ["import torch.nn as n", "def f():\n    from torch import nn", "if x:\n    import json, torch", 'CHILD = """\nimport torch\n"""'],
)
def test_imports_are_found_wherever_they_are_written(text: str) -> None:
    assert "torch" in written(text)
    assert written("'Without torch. The import of torch takes long.'\nimport json") == {"json"}


@pytest.mark.parametrize(("package", "banned"), [("app", HEAVY), ("engine", SCREEN)])
def test_not_even_late_imports_cross(package: str, banned: tuple[str, ...]) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert len(files) > 100
    crossing = {str(file.relative_to(ROOT)): written(file.read_text(encoding="utf-8")) & set(banned) for file in files}
    assert {file: names for file, names in crossing.items() if names} == {}


def test_app_imports_nothing_heavy() -> None:
    names = modules("app")
    assert {"app.cli", "app.run", "app.bench", "app.doctor"} <= set(names)
    assert imported(names) & set(HEAVY) == set()


def test_the_light_side_of_the_engine_imports_nothing_heavy() -> None:
    names = [name for name in modules("engine") if name.split(".")[1:2] and name.split(".")[1] in LIGHT]
    assert {"engine.client", "engine.catalog.hub", "engine.replay"} <= set(names)
    assert imported(names) & set(HEAVY) == set()


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"], ["run", "x", "--quant", "q4"]])
def test_short_commands_import_neither_torch_nor_textual(arguments: list[str]) -> None:
    code = f"import sys\nfrom app.cli import invoke\ninvoke({arguments!r})\nprint('|', *{{n.split('.')[0] for n in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True
    )
    assert not set(run.stdout.rpartition("|")[2].split()) & {*HEAVY, "textual", "huggingface_hub"}


def test_the_first_frame_waits_for_nothing_that_is_opened_later() -> None:
    """A screen of its own, downloads, the database, Markdown: each is imported when it is opened."""
    assert [name for name in LATE if importlib.util.find_spec(name) is None] == []
    found = loaded(["app.cli", "app.choose", "app.tui"])
    assert "app.screens.chat" in found
    assert found & set(LATE) == set()
    screens = {name.removeprefix("app.screens.") for name in found if name.startswith("app.screens.")}
    assert {name for name in screens if name.partition("_")[0] not in CHAT_SCREENS} == set()
