"""models.toml as checked tables. Every mistake is EngineError(kind="config") with file, line and the nearest key that exists."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from engine.errors import EngineError

TEXT, WORDS, FLAG, WHOLE, NUMBER, TABLE, TABLES = (
    "text",
    "list of texts",
    "true or false",
    "whole number",
    "number",
    "table",
    "list of tables",
)
SOURCE = {"repo": TEXT, "gguf": TEXT, "path": TEXT, "mirror": TABLE}
FACTS = {"licence": TEXT, "gated": FLAG, "params_b": NUMBER, "size_gb": NUMBER, "note": TEXT}
LOADING = {"context": WHOLE, "quant": TEXT, "head": TEXT, "template": TEXT, "stop": WORDS, "via": TEXT}
KEYS: dict[str, dict[str, str]] = {
    "defaults": {"target": TEXT, "drafters": WORDS, "cuda": TABLES, "mps": TABLES, "cpu": TABLES},
    "target": {**SOURCE, **FACTS, **LOADING, "drafters": WORDS},
    "drafter": {**SOURCE, **FACTS, **LOADING, "kind": TEXT, "for": WORDS, "min_match": WHOLE, "max_match": WHOLE},
    "mirror": {"wheels": WORDS, "members": WORDS, "file": TEXT, "size": WHOLE, "sha256": TEXT},
    "offer": {"memory_gb": NUMBER, "fast_4bit": FLAG, "targets": WORDS},
}
CHOICES = {
    "kind": ("model", "heads", "ngram"),
    "quant": ("auto", "nf4", "int8", "bf16", "fp16", "fp32"),
    "head": ("auto", "nf4", "int8", "bf16", "fp16", "fp32"),
    "via": ("transformers",),
}


def read(file: Path) -> dict[str, Any]:
    """The tables of a file: {"defaults": {…}, "target": {name: {…}}, "drafter": {name: {…}}}, every key known and of its type."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
        tables = tomllib.loads(text)
    except OSError as error:
        raise EngineError(f"{file} cannot be read ({error.strerror}).", "Check its permissions.", kind="config") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise EngineError(f"{file}, line {line}: the text is not UTF-8.", "Save the file as UTF-8.", kind="config") from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        reason = re.sub(r" *\(at .*\)", "", str(error))
        raise EngineError(
            f"{file}, line {line}: this is not valid TOML ({reason}).",
            "Correct that line; specchat never changes this file.",
            kind="config",
        ) from None
    _Checker(file, text).check(tables)
    return tables


class _Checker:
    def __init__(self, file: Path, text: str) -> None:
        self._file, self._lines = file, text.splitlines()

    def check(self, tables: dict[str, Any]) -> None:
        for name, table in tables.items():
            if name not in ("defaults", "target", "drafter"):
                self._unknown(name, ("defaults", "target", "drafter"), [], name, "table")
            if not isinstance(table, dict):
                self._fail([], name, f"{name} must be a table, [{name}.NAME]", "See the examples in the README.")
            if name == "defaults":
                self._table(["defaults"], table, "defaults")
                continue
            for entry, values in table.items():
                if not isinstance(values, dict):
                    self._fail([name], entry, f"[{name}] holds entries, [{name}.NAME]", f'Did you mean [{name}."NAME"] with {entry} below?')
                self._table([name, entry], values, name)

    def _table(self, path: list[str], table: dict[str, Any], kind: str) -> None:
        known = KEYS[kind]
        for key, value in table.items():
            if key not in known:
                self._unknown(key, tuple(known), path, f"[{'.'.join(path)}]", "key")
            if not _fits(value, known[key]):
                self._fail(path, key, f"{key} must be a {known[key]}", f"It is {value!r} now.")
            if key in CHOICES and value not in CHOICES[key]:
                self._unknown(value, CHOICES[key], path, key, "value", key)
            if known[key] == TABLE:
                self._table([*path, key], value, key)
                lack = [name for name in KEYS[key] if name not in value]
                if lack:
                    self._fail(path, key, f"{key} lacks {', '.join(lack)}", "A mirror needs all of them.")
            if known[key] == TABLES:
                for item in value:
                    self._table([*path, key], item, "offer")

    def _unknown(self, word: str, known: tuple[str, ...], path: list[str], where: str, what: str, key: str | None = None) -> NoReturn:
        near = difflib.get_close_matches(word, known, 1, 0.4)
        place = "" if what == "table" else f" in {where}" if what == "key" else f" for {where}"
        hint = f"Did you mean {near[0]!r}? " if near else ""
        self._fail(path, key or word, f"the {what} {word!r}{place} is not known", f"{hint}Known: {', '.join(known)}.")

    def _fail(self, path: list[str], key: str, problem: str, hint: str) -> NoReturn:
        line = line_of(self._lines, path, key)
        raise EngineError(f"{self._file}, line {line}: {problem}.", hint, kind="config", numbers={"line": line})


def line_of(lines: list[str], path: list[str], key: str) -> int:
    """The line of a key in a table, from 1; the table's own line when the key is not found (inside an inline table), else 1.

    tomllib keeps no positions, so this looks for headers and keys itself, and steps over multi-line texts.
    """
    table: list[str] = []
    quote = ""
    best = 0
    for number, line in enumerate(lines, 1):
        if quote:
            quote = "" if line.count(quote) % 2 else quote
            continue
        quote = next((q for q in ('"""', "'''") if line.count(q) % 2), "")
        if header := re.match(r"\s*\[\[?([^\]]+)\]", line):
            table = _dotted(header[1])
            if table[: len(path) + 1] == [*path, key]:
                return number
            if table == path[: len(table)]:
                best = number
        elif assignment := re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*'|\s*\.\s*)+)\s*=""", line):
            whole = table + _dotted(assignment[1])
            if whole == [*path, key]:
                return number
            if len(whole) > len(table) and whole == path[: len(whole)]:
                best = number
    return best or 1


def _dotted(text: str) -> list[str]:
    return [a or b or c for a, b, c in re.findall(r"""([\w-]+)|"([^"]*)"|'([^']*)'""", text)]


def _fits(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == FLAG
    if kind == WORDS:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind == TABLES:
        return isinstance(value, list) and all(isinstance(item, dict) for item in value)
    types: dict[str, type | tuple[type, ...]] = {TEXT: str, WHOLE: int, NUMBER: (int, float), TABLE: dict, FLAG: bool}
    return isinstance(value, types[kind])
