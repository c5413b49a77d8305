"""What fewer bits cost in quality: each body and LM head against bf16, on the bundled texts, token by token of the true text. Markdown.

    python tests/benchmarks/head_quality.py [-t TARGET] [--tokens 2000] [--bodies nf4 int8 bf16] [--heads nf4 int8 bf16] [--json FILE]

agreement: places where both would write the same token; KL: mean of KL(bf16 || other) over the whole vocabulary, in nats, and what 99 % of
the places stay below; perplexity of the true text. The reference is body and head in bf16. Hidden states are made once per body, by reading
the text as a prompt is read; each head then works on all of them. Bodies are packed anew in memory, so the cache of packed weights is left
alone. Memory: about twice the size of the model in bf16.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from engine.bridge.calibration import PARTS, text  # noqa: E402
from engine.catalog import catalog  # noqa: E402
from engine.catalog.stored import where  # noqa: E402
from engine.decoder import linear  # noqa: E402
from engine.decoder.load import load_weights  # noqa: E402
from engine.decoder.target import LeanTarget  # noqa: E402
from engine.decoder.tokenizer import load_tokenizer  # noqa: E402
from engine.machine import use_physical_cores  # noqa: E402
from engine.speculation.draft import Needs  # noqa: E402

BLOCK = 32  # rows whose logits are in memory at once
CPU = torch.device("cpu")
Head = Callable[[Tensor], Tensor]


def hidden(path: Path, scheme: str, pieces: list[list[int]]) -> tuple[list[Tensor], Tensor]:
    """Behind the final norm, (n, H) of each text; and the LM head's weight (V, H) where it is dense."""
    weights = load_weights(path, device=CPU, quant=scheme, head="bf16", use_cache=False)
    target = LeanTarget(weights, max(map(len, pieces)) + 1)
    target.needs = Needs(final=True)
    out = []
    for ids in pieces:
        found: list[Tensor] = []
        target.truncate(0)
        target.prefill(ids, sink=lambda at, taps, found=found: found.append(taps.clone()))
        out.append(torch.cat(found))
    assert isinstance(weights.head, linear.Dense)
    return out, weights.head._weight.clone()  # a view would hold the whole model


def head(weight: Tensor, scheme: str, cap: float | None) -> Head:
    """Hidden states (n, H) -> float32 logits (n, V)."""
    layout = linear.layout_for(scheme, CPU, (weight.shape[0], weight.shape[1])) if scheme != "bf16" else "dense"
    step = max(linear.TILE, (1 << 22) // weight.shape[1] // linear.TILE * linear.TILE)
    blocks = (linear.pack(weight[at : at + step], layout, torch.bfloat16) for at in range(0, len(weight), step))
    packed = linear.join(blocks, len(weight))
    product = linear.build(packed, None, CPU, torch.float32 if layout.endswith("_tiles") else torch.bfloat16)

    def logits(x: Tensor) -> Tensor:
        out = product(x).float()
        return out if cap is None else torch.tanh(out / cap) * cap

    return logits


@torch.inference_mode()
def compare(reference: Head, states: list[Tensor], other: Head, others: list[Tensor], pieces: list[list[int]]) -> dict[str, float]:
    """Agreement, KL and perplexity over all texts."""
    same, kl, surprise = [], [], []
    for a, b, ids in zip(states, others, pieces, strict=True):
        for at in range(0, len(ids) - 1, BLOCK):
            stop = min(at + BLOCK, len(ids) - 1)
            p, q = torch.log_softmax(reference(a[at:stop]), -1), torch.log_softmax(other(b[at:stop]), -1)
            same += (p.argmax(-1) == q.argmax(-1)).tolist()
            kl += (p.exp() * (p - q)).sum(-1).tolist()
            surprise += (-q.gather(1, torch.tensor(ids[at + 1 : stop + 1])[:, None])[:, 0]).tolist()
    ordered = sorted(kl)
    return {
        "agreement": sum(same) / len(same),
        "kl": statistics.mean(kl),
        "kl_99": ordered[int(0.99 * len(ordered))],
        "perplexity": float(torch.tensor(surprise).mean().exp()),
    }


def main() -> None:
    """Print one row per body and head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--tokens", type=int, default=2000, help="of all texts together")
    parser.add_argument("--bodies", nargs="+", default=["bf16", "int8", "nf4"], choices=["bf16", "int8", "nf4"])
    parser.add_argument("--heads", nargs="+", default=["bf16", "int8", "nf4"], choices=["bf16", "int8", "nf4"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    use_physical_cores()
    spec = catalog.load().target(given.target)
    path = where(spec)
    tokenizer = load_tokenizer(path, spec.template)
    pieces = [tokenizer.encode(text(part).decode(), special=False)[: given.tokens // len(PARTS)] for part in PARTS]
    states, weight = hidden(path, "bf16", pieces)
    cap = cap_of(path)
    reference = head(weight, "bf16", cap)
    heads = {name: head(weight, name, cap) for name in given.heads}
    count = sum(len(ids) - 1 for ids in pieces)
    print(f"{given.target} against itself in bf16, {count} places in {', '.join(PARTS)}\n")
    print("| body | LM head | agreement | KL | KL, 99 % | perplexity |\n| :--- | :--- | ---: | ---: | ---: | ---: |")
    rows = []
    for body in given.bodies:
        others = states if body == "bf16" else hidden(path, body, pieces)[0]
        for name, other in heads.items():
            row = compare(reference, states, other, others, pieces)
            rows.append({"body": body, "head": name, **row})
            cells = [body, name, f"{row['agreement']:.2%}", f"{row['kl']:.5f}", f"{row['kl_99']:.4f}", f"{row['perplexity']:.3f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def cap_of(path: Path) -> float | None:
    """The cap that some families put on their logits."""
    from engine.decoder.config import from_hf
    from engine.decoder.source import open_source

    return from_hf(open_source(path).config).final_softcap


if __name__ == "__main__":
    main()
