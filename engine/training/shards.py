"""Answered prompts with what the target's layers said, on disk: safetensors files of some thousand tokens each, and nothing else.

A shard is written whole under another name and then renamed, so there are no half ones. Hidden states are bf16, or int8 with a scale per
position. Reading maps the files: what is in memory at a time is one batch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from engine.catalog.progress import human
from engine.errors import EngineError
from engine.training import files

TEACHER = 8  # likeliest tokens of the target that are kept per position
RESERVE = 256_000_000  # bytes of disk to leave free
PROMPT_SHARE = 0.4  # prompt tokens per reply token, for the estimate


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt with the target's reply. n = len(ids) - 1 positions have hidden states: all but the last."""

    number: int  # of its seed
    ids: Tensor  # (n + 1,) int64
    start: int  # index of the reply's first token
    hidden: Tensor  # (n, H) behind the final norm
    top_ids: Tensor  # (replied, TEACHER) int64: likeliest tokens in the place of each token of the reply
    top_chances: Tensor  # (replied, TEACHER) float32: their chances

    @property
    def replied(self) -> int:
        return len(self.ids) - self.start


def size(tokens: int, hidden: int, kind: str) -> int:
    """Bytes on disk for so many tokens of replies and their prompts."""
    per_position = hidden * (1 if kind == "int8" else 2) + 4 + 2
    return round(tokens * ((1 + PROMPT_SHARE) * per_position + TEACHER * 6))


def check_space(folder: Path, tokens: int, hidden: int, kind: str) -> int:
    """Bytes that the data will take. EngineError(kind="disk_full") where the disk has not so many."""
    need = size(tokens, hidden, kind)
    free = shutil.disk_usage(folder).free
    if free < need + RESERVE:
        fits = max(0, int(tokens * (free - RESERVE) / max(need, 1)) // 1000 * 1000)
        choice = "" if kind == "int8" else "--features int8, "
        raise EngineError(
            f"Training data of {tokens:,} tokens need {human(need)} of disk, and {folder} has {human(free)} free.",
            f"Free some space, or choose {choice}fewer --tokens"
            + (f" ({fits:,} fit)" if fits else "")
            + ", or another place with --out. What is there already is kept.",
            kind="disk_full",
            numbers={"need": need, "free": free, "fits": fits},
        )
    return need


def write(folder: Path, texts: Sequence[Text], kind: str) -> Path:
    """Write one shard. EngineError when the disk is full."""
    tensors: dict[str, Tensor] = {
        "ids": torch.cat([text.ids for text in texts]).to(torch.int32),
        "top_ids": torch.cat([text.top_ids for text in texts]).to(torch.int32),
        "top_chances": torch.cat([text.top_chances for text in texts]).to(torch.float16),
    }
    hidden = torch.cat([text.hidden for text in texts])
    if kind == "int8":
        steps = hidden.float().abs().amax(1, keepdim=True).clamp_min(1e-12) / 127  # (N, 1)
        tensors |= {"hidden": (hidden.float() / steps).round().to(torch.int8), "steps": steps.to(torch.float32)}
    else:
        tensors["hidden"] = hidden.to(torch.bfloat16)
    index = [[text.number, len(text.ids), text.start] for text in texts]
    name = folder / f"{texts[0].number:07d}-{len(texts):03d}.safetensors"
    files.write(name, save({key: tensor.contiguous() for key, tensor in tensors.items()}, {"texts": json.dumps(index)}))
    return name


class Store:
    """All texts of a folder of shards, by the number of their seed. Reads only what is asked for."""

    def __init__(self, folder: Path) -> None:
        self._where: dict[int, tuple[Path, int, int, int, int, int]] = {}  # number -> file, first id, position, reply; lengths
        self._open: dict[Path, dict[str, Tensor]] = {}
        for file in sorted(folder.glob("*.safetensors")):
            self.add(file)

    def add(self, file: Path) -> None:
        """One more shard."""
        try:
            with safe_open(str(file), framework="pt") as handle:
                index = json.loads(handle.metadata()["texts"])
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            file.unlink(missing_ok=True)  # damaged: its prompts are asked again
            return
        first = position = reply = 0
        for number, length, start in index:
            self._where.setdefault(number, (file, first, position, reply, length, start))
            first, position, reply = first + length, position + length - 1, reply + length - start

    def __contains__(self, number: int) -> bool:
        return number in self._where

    def __len__(self) -> int:
        return len(self._where)

    @property
    def numbers(self) -> list[int]:
        """Ascending."""
        return sorted(self._where)

    def replied(self, number: int) -> int:
        """Tokens of a reply."""
        *_, length, start = self._where[number]
        return length - start

    def length(self, number: int) -> int:
        """Tokens of prompt and reply."""
        return self._where[number][4]

    def read(self, number: int) -> Text:
        """One text; hidden states in float32."""
        file, first, position, reply, length, start = self._where[number]
        tensors = self._tensors(file)
        hidden = tensors["hidden"][position : position + length - 1].float()
        if "steps" in tensors:
            hidden = hidden * tensors["steps"][position : position + length - 1]
        rows = slice(reply, reply + length - start)
        return Text(
            number,
            tensors["ids"][first : first + length].long(),
            start,
            hidden,
            tensors["top_ids"][rows].long(),
            tensors["top_chances"][rows].float(),
        )

    def _tensors(self, file: Path) -> dict[str, Tensor]:
        """The mapped tensors of a file: they stay on disk until they are read."""
        if file not in self._open:
            with safe_open(str(file), framework="pt") as handle:
                self._open[file] = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  not a dict
        return self._open[file]
