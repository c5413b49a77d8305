"""The README says what the program does: its table of commands is the one of the code, its keys and commands exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from app import run
from app.cli import COMMANDS
from app.commands import help_text
from app.options import Options
from app.report import ROW_KEYS
from engine.catalog.catalog import builtin
from engine.protocol import FinishReason, Origin
from engine.stats import Stats

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_table_of_keys_and_commands_is_that_of_the_code() -> None:
    block = README.split("<!-- commands -->\n")[1].split("<!-- /commands -->")[0]
    assert block == help_text(), "paste app.commands.help_text() between the two marks in README.md"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_explained(command: str) -> None:
    assert f"specchat {command}" in README


def test_the_json_keys_are_those_of_the_code() -> None:
    table = README.split("`--json` prints one object")[1].split("exit code")[0]
    for key in run.result(Options(), None, None, None, 0):
        assert f"`{key}`" in table
    for field in fields(Stats):
        assert f"`{field.name}`" in table
    for word in (*FinishReason.__args__, *Origin.__args__):  # type: ignore[attr-defined]
        assert f"`{word}`" in table


def test_the_bench_rows_are_those_of_the_code() -> None:
    listed = README.split("`rows`:")[1].split(";")[0]
    assert tuple(re.findall(r"`(\w+)`", listed)) == ROW_KEYS


def test_models_in_examples_exist() -> None:
    catalog = builtin()
    examples = re.findall(r" (-t|-d) ([a-z][\w.-]+)", README)
    assert len(examples) >= 4
    for option, name in examples:
        assert (catalog.target(name) if option == "-t" else catalog.drafter(name)).name == name
