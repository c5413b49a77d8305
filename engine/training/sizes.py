"""How large home-made heads are: a HeadSpec scaled to its target, and what its config.json says. Layouts are the published ones.

On a small target every weight counts: a draft head's LM head over the whole vocabulary would cost as much as the target's own, so a
shortlist of tokens takes its place (as in EAGLE-3), and the feed-forward parts of transformer layers are two hidden sizes wide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.decoder.config import DecoderConfig
from engine.drafters.heads.load import facts_of
from engine.drafters.heads.specs import TREES, HeadSpec
from engine.errors import EngineError
from engine.training.protocol import Kind

WIDE = 2  # feed-forward width of the heads' transformer layers, in hidden sizes
LAYERS: dict[Kind, int] = {"hydra++": 2, "gumiho": 3, "medusa": 1}  # residual blocks of each head, the first one counted
SERIAL = 2  # Gumiho: tokens drafted by transformer layers
SHORT_CPU, SHORT_GPU = 8192, 32768  # tokens of a shortlist by default
FULL_BELOW = 16384  # a vocabulary that is so small needs none


def shortlist_size(asked: int | None, vocab: int, device: str) -> int:
    """Tokens that heads may draft; `vocab` = all of them. `asked` 0 means all, None by the device."""
    if asked is None:
        asked = 0 if vocab <= FULL_BELOW else SHORT_CPU if device == "cpu" else SHORT_GPU
    return vocab if asked == 0 else min(asked, vocab)


def sized(kind: Kind, config: DecoderConfig, name: str, drafted: int, rows: int) -> HeadSpec:
    """Heads that draft `drafted` tokens in a row over `rows` tokens of the vocabulary. EngineError where the kind cannot."""
    facts = facts_of(config, name)
    h, vocab = config.hidden_size, config.vocab_size
    spec = HeadSpec(
        kind, h, vocab, rows, h, n_heads=drafted, head_layers=LAYERS[kind], heads=config.n_heads, kv_heads=config.n_kv_heads,
        head_dim=config.head_dim, rms_eps=facts.rms_eps, rope_theta=facts.rope_theta, rope_scaling=facts.rope_scaling,
        max_positions=facts.max_positions, intermediate=WIDE * h, **TREES[kind],
    )  # fmt: skip
    if kind == "medusa":
        return replace(spec, own_lm_head=rows < vocab, intermediate=0, heads=0, kv_heads=0, head_dim=0)
    if kind == "hydra++":
        return replace(spec, layers=1, own_lm_head=True)
    if drafted <= SERIAL:
        raise EngineError(
            f"Gumiho heads draft at least {SERIAL + 1} tokens: two one after the other, the rest at once.",
            f"Use --heads {SERIAL + 1} or more, or --kind hydra++.",
            kind="config",
        )
    whole = rows == vocab
    return replace(
        spec, layers=2, fc_bias=True, n_heads=drafted - SERIAL, own_lm_head=not whole, own_embedding=whole, depth=drafted - 1
    )  # fmt: skip


def config_json(spec: HeadSpec, base: str) -> dict[str, Any]:
    """The published config of the family. `base` names the target."""
    short: dict[str, Any] = {"draft_vocab_size": spec.draft_vocab} if spec.draft_vocab != spec.vocab else {}
    short |= {"embedding_gain": spec.embedding_gain} if spec.embedding_gain != 1.0 else {}
    common: dict[str, Any] = {"base_model_name_or_path": base, "vocab_size": spec.vocab, **short}
    if spec.family == "medusa":
        return {"medusa_num_heads": spec.n_heads, "medusa_num_layers": spec.head_layers, **common}
    if spec.family == "hydra++":
        return {
            "hydra_num_heads": spec.n_heads,
            "hydra_num_layers": spec.head_layers,
            "hydra_head_arch": "prefix-mlp",
            "grounded_heads": True,
            "hidden_state_offset": 0,
            **common,
        }
    return {
        "model_type": "llama",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_eps,
        "rope_theta": spec.rope_theta,
        **({"rope_scaling": dict(spec.rope_scaling)} if spec.rope_scaling else {}),
        "max_position_embeddings": spec.max_positions,
        "bias": True,
        "tie_word_embeddings": False,
        **common,
    }
