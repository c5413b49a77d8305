"""What draft heads are made of: packed matrices, transformer layers with a cache of their own, residual blocks.

Numerics are those of the reference implementations (attention scale 1/sqrt(d), softmax in float32, rotary by halves, RMS norm in
float32); the weights may be quantized, since a head's quality never affects what the target says.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder import linear
from engine.decoder.front import Gate, RmsNorm
from engine.decoder.linear import Linear, Packed
from engine.decoder.rope import rotate_
from engine.drafters.heads.specs import HeadSpec
from engine.errors import EngineError

BLOCK = 1 << 20  # weights that are in memory at once while packing, as float32 and a few temporaries
GROW = 512
SILU = Gate("silu")


class Maker:
    """Builds pieces out of the stored tensors in one number format; a tensor that has several names is built once."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        scheme: str,
        device: torch.device,
        dtype: torch.dtype,
        progress: Callable[[str, int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.tensors, self.scheme, self.device, self.dtype = tensors, scheme, device, dtype
        self.nbytes = 0
        self._built: dict[tuple[int, ...], Linear] = {}
        self._progress, self._cancelled = progress, cancelled
        self._done, self._total = 0, sum(t.numel() for t in {id(t): t for t in tensors.values()}.values() if t.ndim == 2)

    def linear(self, *names: str) -> Linear:
        """The matrices `name.weight`, one above the other, with their biases where they have some."""
        weights = [self.tensors[f"{name}.weight"] for name in names]
        key = tuple(id(weight) for weight in weights)
        if key not in self._built:
            biases = [self.tensors[f"{name}.bias"] for name in names if f"{name}.bias" in self.tensors]
            assert len(biases) in (0, len(names))
            self._built[key] = self._build(weights, torch.cat(biases) if biases else None)
            self.nbytes += self._built[key].nbytes
        return self._built[key]

    def _build(self, weights: list[Tensor], bias: Tensor | None) -> Linear:
        k = weights[0].shape[1]
        layout = linear.layout_for(self.scheme, self.device, (sum(w.shape[0] for w in weights), k))
        step = max(linear.TILE, BLOCK // k // linear.TILE * linear.TILE)
        blocks = [part for weight in weights for part in weight.split(step)]
        if any(block.shape[0] % linear.TILE for block in blocks[:-1]):
            blocks = [torch.cat(weights)]
        whole = linear.join((self._pack(block, layout) for block in blocks), sum(block.shape[0] for block in blocks))
        return linear.build(whole, bias, self.device, self.dtype)

    def _pack(self, block: Tensor, layout: str) -> Packed:
        if self._cancelled is not None and self._cancelled():
            raise EngineError("Loading was stopped.", kind="cancelled")
        packed = linear.pack(block, layout, self.dtype)
        self._done += block.numel()
        if self._progress is not None:
            self._progress("Packing draft heads", self._done, self._total)
        return packed

    def vector(self, name: str) -> Tensor:
        """A norm's weight."""
        value = self.tensors[name].to(self.device, self.dtype)
        self.nbytes += value.nbytes
        return value

    def norm(self, name: str, eps: float) -> RmsNorm:
        """The norm `name.weight`."""
        return RmsNorm(self.vector(f"{name}.weight"), eps)

    def blocks(self, names: list[str]) -> list[Block]:
        """Residual blocks."""
        return [Block(self, name) for name in names]


class Block:
    """y = x + silu(W x + b); where the width changes, y = Wr x + br + silu(W x + b)."""

    def __init__(self, made: Maker, name: str) -> None:
        self._linear = made.linear(f"{name}.linear")
        self._around = made.linear(f"{name}.res_connection") if f"{name}.res_connection.weight" in made.tensors else None

    def __call__(self, x: Tensor) -> Tensor:
        inner = F.silu(self._linear(x))
        return inner + (x if self._around is None else self._around(x))

    def inner(self, x: Tensor) -> Tensor:
        """Without the way around: silu(W x + b)."""
        return F.silu(self._linear(x))


class DraftCache:
    """Keys and values of a head's own layers. `length` confirmed positions; rows of a tree stand behind and are forgotten with it."""

    def __init__(self, spec: HeadSpec, device: torch.device, dtype: torch.dtype) -> None:
        self.length = 0
        self._store = torch.zeros((spec.layers, 2 * spec.kv_heads, GROW, spec.head_dim), device=device, dtype=dtype)

    def reserve(self, rows: int) -> None:
        """Make room for so many positions in all."""
        capacity = self._store.shape[2]
        if rows > capacity:
            larger = self._store.new_zeros((*self._store.shape[:2], max(rows, capacity + max(GROW, capacity // 2)), self._store.shape[3]))
            larger[:, :, : self.length] = self._store[:, :, : self.length]
            self._store = larger

    def layer(self, index: int) -> Tensor:
        """(2 · kv heads, capacity, D)."""
        return self._store[index]

    @property
    def nbytes(self) -> int:
        return self._store.nbytes


class Rotary:
    """Rotary positions of a head, by its own base, at any position: a text may be longer than the head was made for."""

    def __init__(self, spec: HeadSpec, context: int, device: torch.device, dtype: torch.dtype) -> None:
        kind = (spec.rope_scaling or {}).get("rope_type", "default")
        self._scale = 1.0
        if kind == "default":
            exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
            frequencies = 1.0 / spec.rope_theta**exponents
        else:
            from transformers import LlamaConfig
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            config = LlamaConfig(
                hidden_size=spec.heads * spec.head_dim,
                num_attention_heads=spec.heads,
                head_dim=spec.head_dim,
                max_position_embeddings=spec.max_positions,
                rope_parameters={**(spec.rope_scaling or {}), "rope_type": kind, "rope_theta": spec.rope_theta},
            )
            frequencies, self._scale = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=context)
        self._frequencies, self._dtype = frequencies.float().to(device), dtype

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin (M, 1, D) for positions (M,)."""
        angles = positions.float()[:, None] * self._frequencies
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        return torch.cat((cos, cos), -1).to(self._dtype)[:, None], torch.cat((-sin, sin), -1).to(self._dtype)[:, None]


class Layer:
    """One Llama layer: attention over the own cache, then gate, up and down. The norm in front of the attention is the caller's."""

    def __init__(self, made: Maker, at: str, spec: HeadSpec) -> None:
        self._qkv = made.linear(*(f"{at}.self_attn.{x}_proj" for x in "qkv"))
        self._o = made.linear(f"{at}.self_attn.o_proj")
        self._gate_up = made.linear(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj")
        self._down = made.linear(f"{at}.mlp.down_proj")
        self._norm = made.norm(f"{at}.post_attention_layernorm", spec.rms_eps)
        self._heads, self._kv_heads, self._dim = spec.heads, spec.kv_heads, spec.head_dim

    def __call__(self, x: Tensor, residual: Tensor, turn: tuple[Tensor, Tensor], slots: Tensor, at: int, mask: Tensor) -> Tensor:
        """x (M, H) as attention reads it, residual (M, H); keys and values go to slots (2·Hkv, S, D) from `at` on; additive mask
        (M, at + M)."""
        rows, heads, kv_heads = x.shape[0], self._heads, self._kv_heads
        qkv = self._qkv(x).view(rows, heads + 2 * kv_heads, self._dim)
        rotate_(qkv[:, : heads + kv_heads], *turn)
        slots[:, at : at + rows] = qkv[:, heads:].transpose(0, 1)
        # query heads that share a key head form the batch, so that keys are never copied
        q = qkv[:, :heads].view(rows, kv_heads, heads // kv_heads, self._dim).permute(2, 1, 0, 3)  # (G, Hkv, M, D)
        k, v = (part[:, : at + rows].expand(q.shape[0], -1, -1, -1) for part in (slots[:kv_heads], slots[kv_heads:]))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(*q.shape[:2], -1, -1), scale=self._dim**-0.5)
        x = self._o(seen.permute(2, 1, 0, 3).reshape(rows, heads * self._dim), add=residual)
        return self._down(self._gate_up(x, self._norm), SILU, x)


def causal(length: int, rows: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Additive mask (rows, length + rows) of new rows behind `length` confirmed ones."""
    return masked(length, torch.ones((rows, rows), dtype=torch.bool, device=device).tril_(), dtype)


def masked(length: int, visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask (M, length + E): all confirmed positions, and what `visible` (M, E) says of the rows of the tree."""
    mask = torch.zeros((visible.shape[0], length + visible.shape[1]), dtype=dtype, device=visible.device)
    mask[:, length:].masked_fill_(~visible, float("-inf"))
    return mask
