"""What a set of draft heads is, as frozen data: sizes read from tensors, settings from the config, trees from the papers. No torch.

Where a config and a tensor's shape disagree, the tensor decides: published configs are wrong about the number of Medusa heads,
about `fc.bias`, about grouped-query sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["medusa", "hydra", "hydra++", "eagle1", "eagle2", "eagle3", "gumiho"]
ROPE_THETA = 10000.0  # of a head whose config names none, whatever the target's is


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What heads depend on in their target. Sizes in elements."""

    name: str
    hidden: int
    vocab: int
    layers: int
    heads: int = 0  # these and the rest only for Hydra++, whose prefix layer is a layer of the target's kind
    head_dim: int = 0
    rms_eps: float = 1e-6
    rope_theta: float = ROPE_THETA
    rope_scaling: Mapping[str, Any] | None = None
    max_positions: int = 2048


# The published draft trees. `total` counts the root; static trees (Medusa, Hydra, EAGLE-1) have their own lists of nodes.
TREES: dict[Family, dict[str, Any]] = {
    "medusa": {"total": 64, "depth": 4, "top_k": 10},
    "hydra": {"total": 64, "depth": 4, "top_k": 10},
    "hydra++": {"total": 64, "depth": 4, "top_k": 10},
    "eagle1": {"total": 26, "depth": 5, "top_k": 10},
    "eagle2": {"total": 60, "depth": 5, "top_k": 10},
    "eagle3": {"total": 60, "depth": 7, "top_k": 10},
    "gumiho": {"total": 64, "depth": 6, "top_k": 14, "mlp_top_k": 35, "pruning": 35, "serial": 2},
}


@dataclass(frozen=True, slots=True)
class Published:
    """Settings of published Gumiho heads: their reference keeps them in its own repository, not beside the weights."""

    name: str  # part of the target's name
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    rms_eps: float
    max_positions: int
    rope_theta: float = ROPE_THETA


GUMIHO = (
    Published("vicuna", 4096, 11008, 32000, 32, 1e-6, 2048),
    Published("llama-2", 4096, 11008, 32000, 32, 1e-6, 4096),
    Published("13b", 5120, 13824, 32000, 40, 1e-5, 4096),  # Vicuna's and Llama-2's are the same
    Published("llama-2", 8192, 28672, 32000, 64, 1e-5, 4096),
    Published("llama-3", 4096, 14336, 128256, 32, 1e-5, 2048, 500000.0),
    Published("llama-3", 8192, 28672, 128256, 64, 1e-5, 2048, 500000.0),
)


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """One set of draft heads, ready to be built. Sizes in elements; `notes` are sentences for the person."""

    family: Family
    hidden: int
    vocab: int  # the target's
    draft_vocab: int  # rows of the head's own LM head; = vocab where there is none
    target_hidden: int  # width of one hidden state that comes in; = hidden but for some EAGLE-3 heads
    layers: int = 0  # transformer layers of the head itself: Gumiho 2, EAGLE and Hydra++ 1, Medusa and Hydra 0
    intermediate: int = 0
    heads: int = 0  # attention heads
    kv_heads: int = 0
    head_dim: int = 0
    n_heads: int = 0  # Medusa, Hydra: draft heads; Gumiho: parallel MLP heads
    head_layers: int = 0  # residual blocks of each of them, the first one counted
    rms_eps: float = 1e-6
    rope_theta: float = ROPE_THETA
    rope_scaling: Mapping[str, Any] | None = None
    max_positions: int = 2048
    tap_layers: tuple[int, ...] = ()  # EAGLE-3: target layers whose input is read, low to high
    hidden_offset: int = 0  # Hydra: 0 = after the final norm, k = the k-th from the end of the list of hidden states
    grounded: bool = True  # Hydra: heads see the drafted tokens before them
    own_lm_head: bool = False
    own_embedding: bool = False
    embedding_gain: float = 1.0  # home-made Hydra++ and Gumiho: embeddings are read so many times larger than they are
    fc_bias: bool = False
    qkv_bias: bool = False
    norm_before_residual: bool = False  # EAGLE-3 of the speculators library: the residual is the normed input
    # the published tree (TREES), as the reference's own arguments
    total: int = 60
    depth: int = 5
    top_k: int = 10
    mlp_top_k: int = 0  # Gumiho: candidates of an MLP head's row, and paths kept after each MLP head
    pruning: int = 0
    serial: int = 0  # Gumiho: tokens drafted by the transformer layers before the MLP heads take over
    notes: tuple[str, ...] = ()
