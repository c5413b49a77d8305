"""How many draft heads a file holds, and how many residual blocks each has: from the names of its tensors. No torch.

All blocks of a head but the first (Medusa: the first as well) are one object in the published code. Its state dict names that object
once per block; an exporter may have kept one name only. Both forms are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from engine.drafters.heads import layout
from engine.drafters.heads.specs import Family, HeadSpec

AT: dict[str, str] = {"hydra": "hydra_mlp.", "hydra++": "hydra_mlp.", "gumiho": "mlp.", "medusa": ""}  # in front of head and block
LAYERS_KEY = {"medusa": "medusa_num_layers", "hydra": "hydra_num_layers", "hydra++": "hydra_num_layers"}
DISTINCT = {"medusa": 1, "hydra": 2, "hydra++": 2}  # blocks of a head whose repeated block is stored once


def spread(of: Family) -> int:
    """Distance between the indices of two blocks: Hydra++ has a dropout in front of each."""
    return 2 if of == "hydra++" else 1


def indices(names: Iterable[str], of: Family) -> dict[int, list[int]]:
    """head -> indices of its blocks, ascending."""
    found: dict[int, set[int]] = {}
    for name in names:
        if m := re.match(re.escape(AT[of]) + r"(\d+)\.(\d+)\.linear\.(?:weight|bias)", name):
            found.setdefault(int(m[1]), set()).add(int(m[2]))
    return {head: sorted(there) for head, there in found.items()}


def count(names: Iterable[str], of: Family, folder: str) -> int:
    """Draft heads in the file; none may be left out. Configs are wrong about it: published Medusa ones say 2 and have 5."""
    found = indices(names, of)
    if lost := set(range(max(found, default=0) + 1)) - found.keys():
        raise layout.lacking(folder, of, f"head {min(lost)}")
    return len(found)


def layers(names: Iterable[str], of: Family, config: Mapping[str, Any]) -> int:
    """Blocks per head."""
    names = list(names)
    if of == "medusa" and (own := [int(m[1]) for name in names if (m := re.match(r"\d+\.(\d+)\.weight", name))]):
        return own[0]  # the LM head stands behind the last block
    most = max(there[-1] for there in indices(names, of).values()) // spread(of) + 1
    return max(most, int(config.get(LAYERS_KEY[of], 1))) if _once(names, of) else most


def repeated(names: Iterable[str], spec: HeadSpec) -> dict[str, str]:
    """missing name -> name of the same tensor, where the repeated block is stored once in every head."""
    names = list(names)
    if spec.family not in LAYERS_KEY or not _once(names, spec.family):
        return {}
    result: dict[str, str] = {}
    for head, there in indices(names, spec.family).items():
        for j in range(DISTINCT[spec.family] - 1, spec.head_layers):
            index = (j + 1) * spread(spec.family) - 1
            if index not in there:
                at = f"{AT[spec.family]}{head}"
                result |= {f"{at}.{index}.linear.{part}": f"{at}.{there[-1]}.linear.{part}" for part in ("weight", "bias")}
    return result


def _once(names: list[str], of: Family) -> bool:
    return of in DISTINCT and {len(there) for there in indices(names, of).values()} == {DISTINCT[of]}
