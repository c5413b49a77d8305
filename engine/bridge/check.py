"""`specchat check`: what a pair of tokenizers has in common, what `auto` would choose, or why the pair is refused.

Works from tokenizers alone: a folder with nothing but tokenizer files, a `.gguf`, a name from the catalog, or a hub id in the cache.
Nothing is downloaded and no weight is read. Run as a program it prints one JSON object, so that the command line and the screen need
neither torch nor a tokenizer in their own process: `python -m engine.bridge.check TARGET DRAFTER`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.bridge import calibration
from engine.bridge.choice import choose
from engine.bridge.codec import Codec
from engine.bridge.maps import VocabularyMap, vocabulary_map
from engine.catalog import catalog, disk, stored
from engine.catalog.needed import TOKENIZERS
from engine.catalog.specs import ModelSpec
from engine.decoder.tokenizer import Tokenizer, difference, load_tokenizer, sampling_defaults
from engine.errors import EngineError

TOO_LARGE = 0.5  # a drafter of this share of the target hardly pays
LOW = 0.6  # pieces or coverage below this share: little is kept
Facts = dict[str, Any]


def check(target_name: str, drafter_name: str) -> Facts:
    """The facts of a pair, with the keys of `check --json`. Raises EngineError."""
    models = catalog.load()
    target, drafter = models.target(target_name), models.drafter(drafter_name)
    if drafter.kind == "heads":
        return check_heads(target, drafter)
    if drafter.kind != "model":
        raise EngineError(
            f"{drafter.name} is no model with a tokenizer of its own, so there is nothing to check.",
            "Name a small model as DRAFTER; ngram goes with every target.",
            kind="config",
        )
    target_path, drafter_path = tokenizer_place(target), tokenizer_place(drafter)
    one, other = load_tokenizer(target_path, target.template), load_tokenizer(drafter_path, drafter.template)
    one.name, other.name = target.name, drafter.name
    warm = sampling_defaults(target_path).temperature or 0.0
    found = facts(one, other, vocabulary_size(target_path), vocabulary_size(drafter_path), warm)
    found["reasons"] += [f"{tokenizer.name}: {note}" for tokenizer in (one, other) for note in tokenizer.notes]
    if (large := size_reason(target, target_path, drafter, drafter_path)) is not None:
        found["reasons"].append(large)
    return found


def check_heads(target: ModelSpec, drafter: ModelSpec) -> Facts:
    """The facts of draft heads, which have no tokenizer of their own: do they belong to this target?"""
    from engine.drafters.heads.check import check as check_head_files  # only this program looks upwards: it stands for all drafters

    return check_head_files(target, drafter)


def facts(
    target: Tokenizer, drafter: Tokenizer, target_rows: int | None = None, drafter_rows: int | None = None, temperature: float = 0.0
) -> Facts:
    """Two loaded tokenizers compared. `..._rows`: rows of each model's output where known; `temperature` is the target's own."""
    one, other = Codec(target, target_rows), Codec(drafter, drafter_rows)
    found: Facts = {"target": _side(one), "drafter": _side(other), "intersection": None}
    found |= {key: dict.fromkeys(calibration.PARTS) for key in ("coverage", "pieces")}
    found |= {"method": None, "reasons": [], "refused": None}
    reasons: list[str] = found["reasons"]
    mapping = vocabulary_map(one, other) if one.ids and other.ids else None
    if mapping is not None:
        found["intersection"] = mapping.intersection
        for part in calibration.PARTS:
            found["coverage"][part], found["pieces"][part] = calibration.shares(one, other, mapping, calibration.text(part))
    choice = choose(one, other)
    if (differs := difference(target, drafter)) is None:
        found["method"] = "model"
        reasons.append("Both give every id the same token, so drafts need no translation.")
    elif choice.refused is not None or mapping is None:
        found["refused"] = choice.refused
    else:
        found["method"] = choice.sampled if temperature > 0 else choice.greedy
        reasons.append(f"The vocabularies differ: {differs}.")
        own = f"this target's own temperature is {temperature:g}"
        reasons.append(f"auto takes {choice.greedy} at temperature 0 and {choice.sampled} above; {own}.")
        reasons += expectations(one, other, mapping, found["pieces"])
    return found


def _side(codec: Codec) -> Facts:
    return {"class": codec.table.kind, "size": len(codec.table.tokens), "mapped": codec.table.mapped}


def expectations(target: Codec, drafter: Codec, mapping: VocabularyMap, shares: dict[str, float], whole: bool = False) -> list[str]:
    """What is sound, but will cost speed. `shares` of the calibration texts are pieces, or coverage for a method that drafts only `whole`
    tokens that both have."""
    result = []
    lost = drafter.table.mapped - int((mapping.first >= 0).sum())
    if lost:
        result.append(f"{lost:,} tokens of {drafter.name} cannot be written with tokens of {target.name}; they are never drafted.")
    low = [f"{part} ({shares[part]:.0%})" for part in calibration.PARTS if shares[part] < LOW]
    if low:
        how = f"are tokens of {target.name}, too," if whole else f"begin as {target.name} would go on"
        result.append(f"Few tokens of {drafter.name} {how} in {', '.join(low)}: expect few drafts to be kept there when sampling.")
    return result


def size_reason(target: ModelSpec, target_path: Path, drafter: ModelSpec, drafter_path: Path) -> str | None:
    """A sentence where the drafter is too large to pay: by parameters, else by bytes on disk; None where that is not known."""
    one, other = target.params, drafter.params
    if not (one and other):
        one, other = float(weight_bytes(target_path)), float(weight_bytes(drafter_path))
    if not one or other <= TOO_LARGE * one:
        return None
    return f"{drafter.name} has {other / one:.0%} of the size of {target.name}: drafting will hardly pay, and the controller turns it off."


def weight_bytes(path: Path) -> int:
    """Bytes of the weights in a file or folder; 0 where there are only tokenizer files."""
    files = [path] if path.is_file() else [f for ending in ("safetensors", "gguf", "bin") for f in path.glob(f"*.{ending}")]
    return sum(disk.size(file.resolve()) for file in files)


def vocabulary_size(path: Path) -> int | None:
    """Rows of the model's output, as its config or file says; None where only the tokenizer is there."""
    if path.is_dir() and not (path / "config.json").exists() and (found := sorted(path.glob("*.gguf"))):
        path = found[0]
    if path.is_file():
        from engine.decoder.gguf import read_header

        table = read_header(path).tensors.get("token_embd.weight")
        return table.shape[0] if table is not None else None
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        size = (config.get("text_config") or config).get("vocab_size", config.get("vocab_size"))
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) and size > 0 else None


def tokenizer_place(spec: ModelSpec) -> Path:
    """Where a model's tokenizer is on this machine, with its weights or without. EngineError where it is not here."""
    if (found := stored.locate(spec)) is not None:
        return found
    if spec.path is not None:
        raise EngineError(f"There is nothing at {spec.path}.", "Check the path.", kind="missing_weights")
    if spec.repo is not None and spec.file is None:
        from huggingface_hub import try_to_load_from_cache

        for name in TOKENIZERS:
            if isinstance(file := try_to_load_from_cache(spec.repo, name, cache_dir=stored.hub_cache()), str):
                return Path(file).parent
    raise EngineError(f"{spec.name} is not on this machine.", f"Run: specchat pull {spec.name}", kind="missing_weights")


def main(arguments: Sequence[str]) -> int:
    """Print the facts, or the error, as one JSON object on the last line."""
    logging.disable(logging.WARNING)  # what libraries think of a tokenizer's files
    try:
        result: Facts = check(*arguments)
    except EngineError as error:
        result = {"error": {"kind": error.kind, "message": error.message, "hint": error.hint, "detail": error.detail}}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
