"""The published layouts of draft heads: which tensors a family has, under which names, of which shapes. No torch.

Published names: Gumiho `fc`, `layers.{0,1}`, `mlp.{m}.{j}.linear`; Hydra `hydra_mlp.{k}.{j}`, `hydra_lm_head.{k}`, and with a prefix
layer (Hydra++) `prefix_embeding_layer` and odd indices j; Medusa `{i}.{j}.linear`, `{i}.{L}.weight`; EAGLE-1/2 `fc`, `layers.0`;
EAGLE-3 `fc`, `midlayer`, `norm`, `lm_head`, `d2t`. Home-made heads of the others may have a shortlist, too: LM heads with fewer rows
(Gumiho's is `lm_head`) and `d2t` as in EAGLE-3. Prefixes that trainers and exporters put in front are stripped. A name that is
neither used nor known to be of no use is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from engine.drafters.heads.specs import Family, HeadSpec
from engine.errors import EngineError

Shape = tuple[int, ...]
PREFIXES = ("module.", "_orig_mod.", "draft_model.", "medusa_head.", "medusa_heads.", "hydra_head.", "ea_layer.", "model.")
IGNORED: dict[str, tuple[str, ...]] = {  # stored by the published code, never used by it
    "hydra": (r"input_embed_fn\.weight",),
    "hydra++": (r"input_embed_fn\.weight", r"prefix_embeding_layer\.embed_tokens\.weight"),
    "eagle3": (r"t2d",),
}
ALWAYS_IGNORED = r".*rotary_emb\.inv_freq"
HYDRA_ARCHS = {"mlp": "hydra", "prefix-mlp": "hydra++"}
KNOWN = "Known are Medusa, Hydra, Hydra++, EAGLE-1, EAGLE-2, EAGLE-3 and Gumiho heads in their published layouts."


def plain(stored: str) -> str:
    """A stored name without what trainers put in front of it."""
    while prefix := next((p for p in PREFIXES if stored.startswith(p)), ""):
        stored = stored.removeprefix(prefix)
    return re.sub(r"^mlp\.mlp\.(?=\d)", "mlp.", stored)  # Gumiho, as its reference keeps it in memory


def family(names: Iterable[str], config: Mapping[str, Any], folder: str) -> Family:
    """Which family these plain names are of; EAGLE-1 and 2 are the same file, here "eagle2". EngineError when none."""
    names = set(names)

    def any_like(pattern: str) -> bool:
        return any(re.match(pattern, name) for name in names)

    if any_like(r"layers\.[3-9]\.self_attn"):
        more = " with draft heads inside it (Medusa-2)" if any_like(r"\d+\.\d+\.linear\.") else ""
        raise _unknown(folder, f"it is a whole model{more}", "Use it as a target (-t), or as a drafter of its own.")
    if any_like(r"hydra_mlp\."):
        arch = config.get("hydra_head_arch", "prefix-mlp" if any_like("prefix_embeding_layer") else "mlp")
        if arch not in HYDRA_ARCHS:
            raise _unknown(folder, f"its hydra_head_arch is {arch}, of which no weights were ever published", KNOWN)
        return "hydra++" if HYDRA_ARCHS[arch] == "hydra++" else "hydra"
    if any_like(r"mlp\.\d+\.\d+\.linear\."):
        return "gumiho"
    if any_like(r"midlayer\.") or "layers.0.hidden_norm.weight" in names:
        return "eagle3"
    if "fc.weight" in names and any_like(r"layers\.0\."):
        return "eagle2"
    if any_like(r"\d+\.\d+\.linear\.weight"):
        return "medusa"
    raise _unknown(folder, f"its tensors ({', '.join(sorted(names)[:3])}, …) are of no known kind", KNOWN)


def published(names: Iterable[str], of: Family) -> dict[str, str]:
    """stored name -> published name, without those that are of no use."""
    result: dict[str, str] = {}
    for stored in names:
        name = plain(stored)
        if of == "eagle3":
            name = re.sub(r"^layers\.0\.", "midlayer.", name)
        if not any(re.fullmatch(pattern, name) for pattern in (ALWAYS_IGNORED, *IGNORED.get(of, ()))):
            result[stored] = name
    return result


def expected(spec: HeadSpec) -> dict[str, Shape]:
    """Every tensor that heads of this spec have, and its shape."""
    h = spec.hidden
    fc = {"fc.weight": (h, 2 * h)} | ({"fc.bias": (h,)} if spec.fc_bias else {})
    embedding = {"embed_tokens.weight": (spec.vocab, h)} if spec.own_embedding else {}
    match spec.family:
        case "medusa":
            return _blocks(spec, "{k}.{j}", spread=1) | (_lm_heads(spec, f"{{k}}.{spec.head_layers}") if spec.own_lm_head else {})
        case "hydra":
            return _blocks(spec, "hydra_mlp.{k}.{j}", spread=1) | _lm_heads(spec, "hydra_lm_head.{k}", bias=True)
        case "hydra++":
            prefix = _layer(spec, "prefix_embeding_layer.layers.0", input_norm=True) | {"prefix_embeding_layer.norm.weight": (h,)}
            return prefix | _blocks(spec, "hydra_mlp.{k}.{j}", spread=2) | _lm_heads(spec, "hydra_lm_head.{k}.1", bias=True)
        case "gumiho":
            own = {"lm_head.weight": (spec.draft_vocab, h)} if spec.own_lm_head else {}
            return embedding | fc | _layers(spec) | _blocks(spec, "mlp.{k}.{j}", spread=1) | own
        case "eagle1" | "eagle2":
            return embedding | fc | _layers(spec)
        case "eagle3":
            found = _layer(spec, "midlayer", input_norm=True, wide=2) | {"midlayer.hidden_norm.weight": (h,), "norm.weight": (h,)}
            found |= {"fc.weight": (h, len(spec.tap_layers) * spec.target_hidden), "lm_head.weight": (spec.draft_vocab, h)}
            return embedding | found | ({"fc.bias": (h,)} if spec.fc_bias else {})


def check(shapes: Mapping[str, Shape], spec: HeadSpec, folder: str) -> None:
    """Every expected tensor is there in its shape, and no other one. EngineError names those that are not."""
    want = expected(spec)
    if spec.own_lm_head and (spec.draft_vocab != spec.vocab or (spec.family == "eagle3" and "d2t" in shapes)):
        want["d2t"] = (spec.draft_vocab,)
    lack, more = sorted(want.keys() - shapes.keys()), sorted(shapes.keys() - want.keys())
    if lack or more:
        parts = [f"{_names(lack)} {'is' if len(lack) == 1 else 'are'} missing"] if lack else []
        parts += [f"{_names(more)} {'does' if len(more) == 1 else 'do'} not belong there"] if more else []
        raise EngineError(
            f"The {spec.family} heads in {folder} are not complete: {' and '.join(parts)}."
            if lack
            else f"The {spec.family} heads in {folder} hold more than they should: {parts[0]}.",
            "Half-read heads would draft badly without a word, so they are refused. Pull them again, or check where they come from.",
            kind="corrupt_weights",
        )
    for name, shape in want.items():
        if shapes[name] != shape:
            raise wrong_shape(folder, name, shapes[name], shape)


def at(shapes: Mapping[str, Shape], name: str, folder: str) -> Shape:
    """The shape of a matrix that must be there."""
    if name not in shapes:
        raise lacking(folder, "draft", name)
    if len(shapes[name]) != 2:
        raise wrong_shape(folder, name, shapes[name], (0, 0))
    return shapes[name]


def lacking(folder: str, of: str, what: str) -> EngineError:
    """A part that heads of this family cannot do without."""
    return EngineError(
        f"The {of} heads in {folder} are not complete: {what} is missing.",
        "Pull them again, or check where they come from.",
        kind="corrupt_weights",
    )


def wrong_shape(folder: str, name: str, found: Shape, wanted: Shape) -> EngineError:
    """A tensor whose shape does not go with the others and the config."""
    return EngineError(
        f"The heads in {folder} do not fit together: {name} is {_size(found)} instead of {_size(wanted)}.",
        "Config and weights must be of the same heads. Pull them again, or check where they come from.",
        kind="corrupt_weights",
    )


def _blocks(spec: HeadSpec, form: str, spread: int) -> dict[str, Shape]:
    """The residual blocks of all heads. `spread` 2: every other index is a dropout, the first one included."""
    h = spec.hidden
    found: dict[str, Shape] = {}
    for k in range(spec.n_heads):
        for j in range(spec.head_layers):
            name = form.format(k=k, j=j * spread + spread - 1)
            wide = h
            if j == 0 and spec.family == "gumiho":
                wide = 2 * h
            elif j == 0 and spec.family in ("hydra", "hydra++") and spec.grounded:
                wide = (k + 2) * h
                found |= {f"{name}.res_connection.weight": (h, wide), f"{name}.res_connection.bias": (h,)}
            found |= {f"{name}.linear.weight": (h, wide), f"{name}.linear.bias": (h,)}
    return found


def _lm_heads(spec: HeadSpec, form: str, *, bias: bool = False) -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    for k in range(spec.n_heads):
        found[form.format(k=k) + ".weight"] = (spec.draft_vocab, spec.hidden)
        if bias:
            found[form.format(k=k) + ".bias"] = (spec.draft_vocab,)
    return found


def _layers(spec: HeadSpec) -> dict[str, Shape]:
    """Transformer layers whose first one has no norm in front of its attention."""
    found: dict[str, Shape] = {}
    for i in range(spec.layers):
        found |= _layer(spec, f"layers.{i}", input_norm=i > 0)
    return found


def _layer(spec: HeadSpec, at: str, *, input_norm: bool, wide: int = 1) -> dict[str, Shape]:
    h, q, kv = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    found: dict[str, Shape] = {}
    for name, rows in (("q", q), ("k", kv), ("v", kv)):
        found[f"{at}.self_attn.{name}_proj.weight"] = (rows, wide * h)
        if spec.qkv_bias:
            found[f"{at}.self_attn.{name}_proj.bias"] = (rows,)
    found[f"{at}.self_attn.o_proj.weight"] = (h, q)
    found |= {f"{at}.mlp.{name}_proj.weight": (spec.intermediate, h) for name in ("gate", "up")}
    found |= {f"{at}.mlp.down_proj.weight": (h, spec.intermediate), f"{at}.post_attention_layernorm.weight": (h,)}
    return found | ({f"{at}.input_layernorm.weight": (h,)} if input_norm else {})


def _unknown(folder: str, reason: str, hint: str) -> EngineError:
    return EngineError(f"{folder} holds no draft heads that specchat knows: {reason}.", hint, kind="architecture")


def _names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _size(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a number"
