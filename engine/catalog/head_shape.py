"""What the memory estimate needs to know of draft heads, from the names and shapes of their tensors alone. No torch.

Of whatever family: matrices are packed; a repeated block, which has several names, is packed once; of the embeddings only the head's own
is used. Keys and values are kept by each layer that has a `k_proj`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.catalog import needed

UNUSED = ("input_embed_fn.weight", "prefix_embeding_layer.embed_tokens.weight")  # in published Hydra files, never read


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes in values."""

    body: int  # in matrices that are packed
    embedding: int  # the head's own, 0 without one
    kv_per_token: int
    hidden: int
    inner: int
    vocab: int


def of_folder(folder: Path) -> HeadShape:
    """The sizes of the heads in a folder. EngineError when its files are missing or damaged."""
    body: dict[str, int] = {}
    embedding = kv = inner = vocab = 0
    hidden = 1
    for file in (folder / name for name in needed.head_files(folder)):
        for name, tensor in needed.contents(file).items():
            if name.endswith(UNUSED) or len(tensor.shape) != 2:
                continue
            rows, columns = tensor.shape
            if name.endswith("embed_tokens.weight"):
                embedding, hidden = tensor.numel, columns
                continue
            body[f"{file.name} {tensor.place or name} {tensor.shape}"] = tensor.numel
            kv += 2 * rows if name.endswith("k_proj.weight") else 0
            inner = max(inner, rows if name.endswith("gate_proj.weight") else 0)
            hidden = max(hidden, rows if name.endswith((".linear.weight", "o_proj.weight", "fc.weight")) else 0)
            vocab = max(vocab, rows)
    return HeadShape(sum(body.values()), embedding, kv, hidden, inner, max(vocab, embedding // hidden))
