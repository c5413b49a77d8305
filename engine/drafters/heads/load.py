"""Draft heads from disk: strictly, every tensor is used or on the ignore list, and never any code from a file.

Nothing is read but what is asked for: safetensors and zipped checkpoints are mapped, so the tensors here cost no memory until they are
converted. The types stay those of the file; `d2t` is int64 and must never be cast with the rest.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.catalog import pickles
from engine.catalog.headers import corrupt
from engine.decoder.config import DecoderConfig
from engine.drafters.heads import headers
from engine.drafters.heads.describe import describe
from engine.drafters.heads.specs import HeadSpec, TargetFacts
from engine.errors import EngineError


def load_head(path: Path, target: TargetFacts, method: str = "auto", name: str = "") -> tuple[HeadSpec, dict[str, Tensor]]:
    """The heads in a folder: their spec, and their tensors as on disk under their published names (`engine.drafters.heads.layout`).

    Names of one repeated block share one tensor object. `method` is "auto" or a family; "eagle1" and "eagle2" read the same files.
    EngineError: wrong target (kind "wrong_target", "vocabulary"), tensors missing or too many or cut off ("corrupt_weights"), code in
    a pickle ("unsafe_weights"), unknown family ("architecture"), no weights or config ("missing_weights").
    """
    found = headers.read(path, name)
    spec, names = describe(found.config, found.shapes, target, method, found.name)
    stored: dict[str, Tensor] = {}
    for file in found.files:
        stored |= _safetensors(file) if file.suffix == ".safetensors" else _checkpoint(file)
    shared: dict[str, Tensor] = {}  # by place: state dicts name a repeated block several times
    tensors: dict[str, Tensor] = {}
    for ours, source in names.items():
        place = found.tensors[source].place if len(found.files) == 1 else source
        tensors[ours] = shared.setdefault(f"{place} {found.tensors[source].shape}", stored[source])
    if "d2t" in tensors:
        _check_ids(tensors["d2t"], spec, found.name)
    return spec, tensors


def facts_of(config: DecoderConfig, name: str) -> TargetFacts:
    """What heads need to know of a loaded target."""
    rope = next((r for r in config.ropes if r is not None), None)
    parameters = dict(getattr(config.rope_config, "rope_parameters", None) or {})
    return TargetFacts(
        name=name,
        hidden=config.hidden_size,
        vocab=config.vocab_size,
        layers=config.n_layers,
        heads=config.n_heads,
        head_dim=config.head_dim,
        rms_eps=config.norm_eps,
        rope_theta=rope.theta if rope else 10000.0,
        rope_scaling={**parameters, "rope_type": rope.kind} if rope and rope.kind != "default" else None,
        max_positions=config.max_position,
    )


def _safetensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(str(file), framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise corrupt(file, str(error)) from error


def _checkpoint(file: Path) -> dict[str, Tensor]:
    """A `.bin` or `.pt`, mapped where it is a zip archive: the oldest format cannot be."""
    for mapped in (True, False):
        try:
            whole = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
            return pickles.tensors_of(whole, lambda value: isinstance(value, Tensor))
        except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
            if not mapped:
                raise corrupt(file, str(error)) from error
    raise AssertionError


def _check_ids(offsets: Tensor, spec: HeadSpec, name: str) -> None:
    """`d2t` holds offsets: target id = draft id + offset. All ids must be tokens of the target, each once."""
    ids = torch.arange(spec.draft_vocab) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= spec.vocab or ids.unique().numel() != spec.draft_vocab:
        raise EngineError(
            f"The heads in {name} draft tokens that their target does not have: their table d2t is not one of offsets.",
            "Pull them again, or check where they come from.",
            kind="corrupt_weights",
        )
