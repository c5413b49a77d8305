"""Which files of a model repository are needed, and whether a folder has them. Names only; nothing is read but a weight index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from engine.catalog import headers, pickles
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
BIN_INDEX = "pytorch_model.bin.index.json"  # of older repositories, which have no safetensors
# Weight files of draft heads, the best first; a repository may hold several copies of one and the same
HEADS_OWN = ("hydra_lm_head.safetensors", "medusa_lm_head.safetensors", "hydra_lm_head.pt", "medusa_lm_head.pt")
HEADS_PLAIN = ("model.safetensors", "pytorch_model.bin")
HEAD_TENSOR = re.compile(r"(?:^|\.)(?:fc\.weight|midlayer\..*|hydra_mlp\..*|\d+\.\d+\.linear\.weight)$")
SHARD = re.compile(r"(?:pytorch_)?model-\d+-of-(\d+)\.(safetensors|bin)")


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
    if kind == "heads" or looks_like_heads(top):
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
    elif BIN_INDEX in top:
        weights = [BIN_INDEX]
    elif "pytorch_model.bin" in top:
        weights = ["pytorch_model.bin"]
    else:
        raise _no_weights(repo, "no weights that specchat can read", _ggufs(names))
    if "config.json" not in top:
        raise _no_weights(repo, "no config.json", _ggufs(names))
    return small + weights


def lacking(folder: Path, kind: str = "model") -> list[str]:
    """Names of needed files that a folder does not have; empty when it is complete."""
    if kind == "heads" or is_heads(folder):
        there = _heads(f.name for f in folder.iterdir() if f.exists())
        return [] if there else ["head weights (.safetensors, .bin or .pt)"]
    lack = [] if (folder / "config.json").exists() else ["config.json"]
    if not any((folder / name).exists() for name in TOKENIZERS):
        lack.append("tokenizer.json")
    return lack + [name for name in shards(folder) if not (folder / name).exists()]


def looks_like_heads(names: Iterable[str]) -> bool:
    """Are these the files of draft heads? Heads have weights and no tokenizer; a model has both."""
    names = set(names)
    return bool(names & set(HEADS_OWN)) or (not names & set(TOKENIZERS) and not names & {INDEX, BIN_INDEX} and bool(_heads(names)))


def is_heads(folder: Path) -> bool:
    """Does this folder hold draft heads? By the names of its files and, where they leave it open, of its tensors."""
    names = [f.name for f in folder.iterdir() if f.exists()] if folder.is_dir() else []
    if not looks_like_heads(names) or set(names) & set(HEADS_OWN):
        return bool(set(names) & set(HEADS_OWN))
    try:
        return any(HEAD_TENSOR.search(name) for name in contents(folder / _heads(names)[0]))
    except EngineError:  # damaged: only the names of the files can tell
        return True


def head_files(folder: Path) -> list[str]:
    """The weight files of draft heads in a folder. EngineError when there are none."""
    if found := _heads(f.name for f in folder.iterdir() if f.exists()):
        return found
    raise EngineError(
        f"The folder {folder} holds no head weights.", "Give the folder that has them, or pull the heads again.", kind="missing_weights"
    )


def shards(folder: Path) -> list[str]:
    """Names of the weight files that a model folder must hold, whether they are there or not; safetensors before pickles."""
    index = next((folder / name for name in (INDEX, "model.safetensors", BIN_INDEX, "pytorch_model.bin") if (folder / name).exists()), None)
    if index is None or index.suffix != ".json":
        return [index.name if index is not None else "model.safetensors"]
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
    for name in weights(path, kind):
        contents(path / name)


def contents(file: Path) -> dict[str, headers.Shape]:
    """The tensors of one weight file by name. EngineError for a file that is damaged or holds more than tensors."""
    return pickles.read(file) if file.suffix in (".bin", ".pt") else headers.safetensors(file)


def weights(folder: Path, kind: str = "model") -> list[str]:
    """Names of the weight files that a complete folder has."""
    if kind == "heads" or is_heads(folder):
        return head_files(folder)
    return shards(folder)


def _heads(names: Iterable[str]) -> list[str]:
    """One copy of the weights: under a name of the published code, in all its shards, or the only such file there is."""
    names = sorted(names)
    for known in (*HEADS_OWN, *HEADS_PLAIN):
        if known in names:
            return [known]
    for ending in ("safetensors", "bin"):
        parts = [name for name in names if (m := SHARD.fullmatch(name)) and m[2] == ending]
        if parts and len(parts) == int(parts[0].rpartition("-of-")[2].partition(".")[0]):
            return parts
    for endings in ((".safetensors",), (".bin", ".pt")):
        alone = [name for name in names if name.endswith(endings) and not SHARD.fullmatch(name) and not _of_training(name)]
        if len(alone) == 1:
            return alone
    return []


def _of_training(name: str) -> bool:
    return name.startswith(("training_", "optimizer", "scheduler", "rng_state", "scaler"))


def _ggufs(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(".gguf")]


def _no_weights(repo: str, what: str, ggufs: list[str]) -> EngineError:
    hint = "specchat reads safetensors and PyTorch models and single .gguf files."
    if ggufs:
        hint = f"It has GGUF files; name one of them, for example {repo}/{ggufs[0]}."
    return EngineError(f"The repository {repo} has {what}.", hint, kind="missing_weights")
