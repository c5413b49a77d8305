"""A lean decoder made ready for a card: slots at their final place, products that keep their bits, static passes, and a proof.

Everything that depends on the card is tried there once and written down (`notebook`): which numbers of rows keep their bits and what
they cost, and whether the whole model's rows do. `Target.exact` on a card is what this trial says, never a guess by name.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from dataclasses import asdict, replace

import torch

from engine.cuda import attend, buckets, notebook, products
from engine.cuda.products import Planned, Survey, Table
from engine.cuda.recorder import CudaRecorder, EagerRecorder, Recorder
from engine.cuda.rows import StaticRows
from engine.decoder.linear import Linear
from engine.decoder.target import CHUNK, LeanTarget
from engine.decoder.weights import LayerWeights, Weights

ROWS = 16  # rows whose bits are compared
STARTS = (57, 250, 505)  # tokens before them: the rows then cross stretches of 64 slots, parts of the text, sizes of a read
TREE = (0, 0, 1, 1, 3, 2, 5, 5, 4)
log = logging.getLogger(__name__)


def lean(weights: Weights, context: int, exactly: bool = True) -> LeanTarget:
    """The decoder over these weights. `exactly`: its rows shall keep their bits; a drafter's need not."""
    if weights.device.type != "cuda":
        return LeanTarget(weights, context)
    settings(weights.device)
    return ready(weights, context, exactly, _recorder(weights.device))


@functools.cache
def settings(device: torch.device) -> None:
    """One attention kernel for all passes: others choose by shape, and take no mask or no part of one."""
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


@functools.cache
def _recorder(device: torch.device) -> CudaRecorder:
    return CudaRecorder(device)


def recorded_bytes(device: torch.device) -> int:
    """Bytes of a card that recorded passes hold, of all models on it."""
    return _recorder(device).nbytes if device.type == "cuda" else 0


def ready(weights: Weights, context: int, exactly: bool, recorder: Recorder) -> LeanTarget:
    """See the module. The CPU tests come in here."""
    if exactly:
        weights = invariant(weights, recorder)
    target = LeanTarget(weights, context)
    target.cache.fill(CHUNK)
    target.static = _static(target, recorder)
    if exactly and all(linear.row_invariant for linear in _linears(weights)):
        target.exact = _proven(target)
    return target


def _static(target: LeanTarget, recorder: Recorder) -> StaticRows:
    own = attend.possible(target.device, target.model.weights.dtype)
    return StaticRows(target.model, target.cache, recorder, slots=None if own else buckets.slots)


# --- products ---------------------------------------------------------------------------------------------------------


def _linears(weights: Weights) -> Iterable[Linear]:
    yield weights.head
    for layer in weights.layers:
        yield from (layer.qkv, layer.o, layer.gate_up, layer.down)


def invariant(weights: Weights, recorder: Recorder) -> Weights:
    """The same weights, each product taking its rows so that they keep their bits."""
    shapes: dict[str, list[Linear]] = {}
    for linear in _linears(weights):
        if not linear.row_invariant:
            shapes.setdefault(_shape(linear, weights), []).append(linear)
    tables = {shape: _table(shape, linears, weights, recorder) for shape, linears in shapes.items()}

    def planned(linear: Linear) -> Linear:
        return linear if linear.row_invariant else Planned(linear, tables[_shape(linear, weights)], buckets.WIDTHS[-1])

    def layer(w: LayerWeights) -> LayerWeights:
        return replace(w, qkv=planned(w.qkv), o=planned(w.o), gate_up=planned(w.gate_up), down=planned(w.down))

    return replace(weights, layers=tuple(map(layer, weights.layers)), head=planned(weights.head))


def _shape(linear: Linear, weights: Weights) -> str:
    return f"{type(linear).__name__} {linear.out_features}x{linear.in_features} {weights.dtype}"


def _table(shape: str, linears: list[Linear], weights: Weights, recorder: Recorder) -> Table:
    known = notebook.recall(weights.device, shape)
    try:
        found = Survey({int(m): float(s) for m, s in known["seconds"].items()}, tuple(known["alone"]), tuple(known["placeless"]))
    except (KeyError, TypeError, AttributeError, ValueError):
        surveyor = CudaRecorder(weights.device) if weights.device.type == "cuda" else recorder  # what it holds goes with it
        found = products.survey(linears, surveyor, weights.dtype)
        notebook.remember(weights.device, shape, asdict(found))
    table = products.plan(found)
    log.info("%s: %s -> %s", shape, found, table.calls[1:9])
    return table


# --- the proof --------------------------------------------------------------------------------------------------------


def _proven(target: LeanTarget) -> bool:
    config, weights = target.model.config, target.model.weights
    name = f"exact {config} {weights.scheme} {weights.head_scheme} {weights.dtype}"
    known = notebook.recall(target.device, name)
    if not isinstance(known, bool):
        known = rows_agree(target)
        notebook.remember(target.device, name, known)
    return known


def rows_agree(target: LeanTarget) -> bool:
    """Whether each row of chains and of a tree has the bits that it has alone. Tries it on the model, run but not captured."""
    static = target.static
    assert static is not None
    target.static = _static(target, EagerRecorder(target.device))
    try:
        return all(_agrees_at(target, start) for start in STARTS if start + ROWS < target.context)
    finally:
        target.truncate(0)
        target.static = static


def _agrees_at(target: LeanTarget, start: int) -> bool:
    made = torch.Generator().manual_seed(start)
    ids = torch.randint(target.vocab_size, (start + ROWS,), generator=made)
    target.truncate(0)
    target.prefill(ids[:start].tolist())
    alone = []
    for row in range(ROWS):
        alone.append(target.verify(ids[start + row : start + row + 1], ())[0])
        target.keep((0,))
    target.truncate(start)
    for width in range(2, ROWS + 1):
        logits = target.verify(ids[start : start + width], tuple(range(width - 1)))
        if not all(torch.equal(logits[row], alone[row]) for row in range(width)):
            log.info("rows of a chain of %s behind %s tokens differ from single ones", width, start)
            return False
    return _tree_agrees(target, ids[start : start + len(TREE) + 1])


def _tree_agrees(target: LeanTarget, tokens: torch.Tensor) -> bool:
    logits = target.verify(tokens, TREE)
    for row in range(len(tokens)):
        path = [row]
        while path[0]:
            path.insert(0, TREE[path[0] - 1])
        chain = target.verify(tokens[path], tuple(range(len(path) - 1)))
        if not torch.equal(logits[row], chain[-1]):
            log.info("row %s of a tree differs from its chain", row)
            return False
    return True
