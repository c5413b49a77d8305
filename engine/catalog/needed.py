"""Which files of a model repository are needed, and whether a folder has them. Names only; nothing is read but a weight index."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from engine.catalog import headers
from engine.errors import EngineError

SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
INDEX = "model.safetensors.index.json"


def choose(names: Iterable[str], repo: str, kind: str = "model", file: str | None = None) -> list[str]:
    """The files to fetch from a repository that holds `names`; where an index is among them, the weight files that it names as well.

    Raises EngineError(kind="missing_weights") when there are no weights.
    """
    top = [name for name in names if "/" not in name]  # what lies in folders is another format's copy
    if file:
        if file in names:
            return [file]
        raise _no_weights(repo, f"no file {file}", _ggufs(names))
    small = [name for name in SMALL if name in top]
    if kind == "heads":
        weights = _heads(top)
        if not weights:
            raise _no_weights(repo, "no head weights", [])
        return [name for name in small if name == "config.json"] + weights
    if "tokenizer.json" not in top and "tokenizer.model" in top:
        small.append("tokenizer.model")
    if INDEX in top:
        weights = [INDEX]
    elif "model.safetensors" in top:
        weights = ["model.safetensors"]
    else:
        raise _no_weights(repo, "no safetensors weights", _ggufs(names))
    if "config.json" not in top:
        raise _no_weights(repo, "no config.json", _ggufs(names))
    return small + weights


def lacking(folder: Path, kind: str = "model") -> list[str]:
    """Names of needed files that a folder does not have; empty when it is complete."""
    if kind == "heads":
        return [] if _heads(f.name for f in folder.iterdir() if f.exists()) else ["head weights (.safetensors, .bin or .pt)"]
    lack = [] if (folder / "config.json").exists() else ["config.json"]
    if not any((folder / name).exists() for name in TOKENIZERS):
        lack.append("tokenizer.json")
    return lack + [name for name in shards(folder) if not (folder / name).exists()]


def shards(folder: Path) -> list[str]:
    """Names of the safetensors files that a model folder must hold, whether they are there or not."""
    index = folder / INDEX
    if not index.exists():
        return ["model.safetensors"]
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise headers.corrupt(index, f"it is not a weight index ({error})") from None


def verify(path: Path, kind: str = "model") -> None:
    """Look at every weight file's header and length: EngineError missing_weights or corrupt_weights. Reads no weights."""
    if path.is_file():
        headers.gguf(path)
        return
    lack = lacking(path, kind) if path.is_dir() else [str(path)]
    if lack:
        raise EngineError(
            f"The model in {path} is not complete: {', '.join(lack[:3])} {'is' if len(lack) == 1 else 'are'} missing.",
            "Pull the model again, or check the path.",
            kind="missing_weights",
        )
    names = shards(path) if kind == "model" else [f.name for f in path.glob("*.safetensors")]
    for name in names:
        headers.safetensors(path / name)


def _heads(names: Iterable[str]) -> list[str]:
    names = list(names)
    safe = [name for name in names if name.endswith(".safetensors")]
    return safe or [name for name in names if name.endswith((".bin", ".pt")) and not fnmatchcase(name, "*training*")]


def _ggufs(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(".gguf")]


def _no_weights(repo: str, what: str, ggufs: list[str]) -> EngineError:
    hint = "specchat reads safetensors models and single .gguf files."
    if ggufs:
        hint = f"It has GGUF files; name one of them, for example {repo}/{ggufs[0]}."
    return EngineError(f"The repository {repo} has {what}.", hint, kind="missing_weights")
