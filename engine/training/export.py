"""Trained heads as a folder that any part of specchat can load: weights in the published layout, config.json, tree.json, a model card.

Weights are bf16. LM heads that several draft heads share are stored once under all their names, which a PyTorch checkpoint can and a
safetensors file cannot; so Hydra's and Medusa's files have the names and the format of their publishers.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from engine.decoder.weights import Weights
from engine.drafters.heads import identity
from engine.drafters.heads.specs import HeadSpec
from engine.training import files, sizes
from engine.training.network import Network, published
from engine.training.protocol import Measured

FILES = {"hydra++": "hydra_lm_head.pt", "medusa": "medusa_lm_head.pt", "gumiho": "model.safetensors"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the heads were made, for config.json and the model card."""

    base: str  # the target's name or hub id
    target: dict[str, Any]  # as in `identity.describe`
    tokens: int
    texts: int
    own_prompts: int
    coverage: float  # share of the replies' tokens that the heads may draft
    steps: int
    epochs: float
    seconds: float
    precision: str
    judged_tau: float
    agreement: tuple[float, ...]


def write_weights(folder: Path, network: Network, ids: Tensor, weights: Weights, recipe: Recipe, gain: float, *, chain: bool) -> None:
    """Write weights, config.json and tree.json. `ids` (S,) are the tokens that may be drafted; `gain` as in `network.published`,
    where config.json does not say it. `chain`: draft a plain chain, where branches cost more than they bring.
    EngineError when the disk is full."""
    spec = network.spec
    tensors = _stored(published(network, gain / spec.embedding_gain))
    if spec.own_embedding:
        tensors["embed_tokens.weight"] = weights.embed.detach().to("cpu", torch.bfloat16)
    if spec.draft_vocab != spec.vocab:
        tensors["d2t"] = ids.to(torch.int64) - torch.arange(len(ids))
    file = folder / FILES[spec.family]
    if file.suffix == ".pt":
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        files.write(file, buffer.getvalue())
    else:
        files.write(file, save({name: tensor.contiguous() for name, tensor in tensors.items()}))
    if chain and spec.family != "gumiho":
        files.write_json(folder / "tree.json", [[0] * depth for depth in range(1, spec.n_heads + 1)])
    write_config(folder, spec, recipe, None)


def write_config(folder: Path, spec: HeadSpec, recipe: Recipe, measured: Measured | None) -> None:
    """Write config.json; `measured` once it is known."""
    own = {
        **recipe.target,
        "tokens": recipe.tokens,
        "judged_tau": round(recipe.judged_tau, 4),
        "agreement": [round(share, 4) for share in recipe.agreement],
        "tau": None if measured is None else round(measured.tau, 4),
        "tau_spread": None if measured is None else round(measured.spread, 4),
        "speedup": None if measured is None else round(measured.speedup, 3),
    }
    files.write_json(folder / "config.json", sizes.config_json(spec, recipe.base) | {identity.KEY: own})


def _stored(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """In bf16; what is one tensor stays one."""
    made: dict[int, Tensor] = {}
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        key = tensor.data_ptr()
        if key not in made:
            made[key] = tensor.detach().to("cpu", torch.bfloat16)
        out[name] = made[key].view(tensor.shape)
    return out


def write_card(folder: Path, spec: HeadSpec, recipe: Recipe, measured: Measured, name: str) -> None:
    """Write README.md."""
    files.write(folder / "README.md", card(spec, recipe, measured, name).encode())


def card(spec: HeadSpec, recipe: Recipe, measured: Measured, name: str) -> str:
    """The model card."""
    shares = "".join(
        f"| {k} | {right:.1%} | {kept:.1%} |\n"
        for k, (right, kept) in enumerate(zip(recipe.agreement, (*measured.kept, *[0.0] * len(recipe.agreement)), strict=False), start=1)
    )
    front = {"library_name": "specchat", "base_model": recipe.base, "tags": ["speculative-decoding", spec.family]}
    short = "all" if spec.draft_vocab == spec.vocab else f"{spec.draft_vocab:,} of {spec.vocab:,} ({recipe.coverage:.1%} of the replies)"
    own = f", {recipe.own_prompts:,} of the prompts were the person's own" if recipe.own_prompts else ""
    same = "the same" if measured.same_text else "NOT the same everywhere"
    return (
        "---\n"
        + "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items())
        + f"---\n\n# {spec.family} draft heads for {recipe.base}\n\n"
        + f"Trained at home with `specchat train`. They draft {len(recipe.agreement)} tokens in a row for one target; the text stays the "
        + "target's own, whatever they draft.\n\n"
        + f"Use: `specchat run -t {recipe.target['target']} -d {name or folder_hint(spec)} 'PROMPT'`\n\n## Target\n\n"
        + f"- {recipe.base}, weights in {recipe.target['quant']}, LM head in {recipe.target['head']}\n"
        + f"- hash of its sizes and norms (SHA-256): `{recipe.target['target_hash']}`\n\n"
        + "Another target is refused. Another quantization of the same target works, with a warning: drafts may be kept less often.\n\n"
        + "## Data and recipe\n\n"
        + f"- self-distillation: {recipe.tokens:,} tokens in {recipe.texts:,} replies of the target to bundled prompts{own}; the hidden "
        + "states come from the steps that wrote them\n"
        + f"- tokens that may be drafted: {short}; the LM head is the target's own, frozen\n"
        + f"- {recipe.steps:,} steps, {recipe.epochs:.1f} passes over the data, {recipe.precision}, "
        + f"{recipe.seconds / 60:.0f} minutes in all\n"
        + "- loss: cross-entropy to the target's law, and the distance to its hidden states\n\n## Measured\n\n"
        + f"On {measured.tokens:,} tokens of greedy replies about topics that were never trained on: "
        + f"**tau {measured.tau:.2f} ± {measured.spread:.2f}** tokens per step with at most {len(recipe.agreement)} drafted tokens. "
        + f"The text was {same} as without heads. Expected speed-up on the machine that trained them: {measured.speedup:.2f}x.\n\n"
        + "| drafted token | right, those before it given | kept, those before it kept |\n| --- | --- | --- |\n"
        + shares
        + "\nThe licence of the target applies to heads that were made from it.\n"
    )


def folder_hint(spec: HeadSpec) -> str:
    """What stands for the heads' folder in an example."""
    return f"./{spec.family}-heads"
