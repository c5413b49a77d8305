"""The fallback: an architecture that the lean decoder lacks, run by transformers with its own cache. Slower; chains only.

What a cache can do is tried, not guessed, on a few tokens at load: whether rows can be taken back (`is_croppable`; recurrent layers
cannot), and whether a second pass of several tokens continues the first correctly (Mamba's does not: it then reads one token at a
time). Where rows cannot be taken back nothing is drafted, and going back means reading again from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.decoder.linear import DTYPES
from engine.decoder.load import resolve_scheme
from engine.decoder.source import AGAIN
from engine.errors import EngineError
from engine.speculation.draft import Needs

if TYPE_CHECKING:
    from engine.cuda.place import Spread

CHUNK = 512
MAX_NODES = 16
_STATE = ("keys", "values")


def open_hf(path: Path, device: torch.device, quant: str, context: int, laid: Spread | None = None) -> tuple[HfTarget, str, str, list[str]]:
    """(target, scheme, head scheme, notes). `laid`: over several cards and the host, by accelerate. Raises EngineError."""
    scheme, dtype = _scheme(path, device, quant)
    model = _load(path, device, scheme, dtype, laid)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or context
    target = HfTarget(model, min(context, limit), device)
    head = next(name for name, kind in DTYPES.items() if kind == dtype)
    notes = ["This architecture runs through transformers, which is slower than specchat's own decoder."]
    if target.max_nodes == 0:
        notes.append("No drafter can help here: the model's memory of the text cannot be rolled back.")
    return target, scheme, head, notes


def _scheme(path: Path, device: torch.device, quant: str) -> tuple[str, torch.dtype]:
    scheme, _, dtype = resolve_scheme(quant, "auto", device)
    if path.is_file() and scheme in ("nf4", "int8"):  # transformers cannot quantize what it reads from a GGUF
        scheme = next(name for name, kind in DTYPES.items() if kind == dtype)
    if quant == "auto" and scheme == "nf4" and device.type == "cpu" and not _fast_nf4():
        scheme = "bf16"
    return scheme, dtype


def _fast_nf4() -> bool:
    """Whether bitsandbytes' own kernel for CPUs runs here: without it 4 bits are far slower than bf16."""
    try:
        from bitsandbytes.functional import has_avx512bf16

        return bool(has_avx512bf16())
    except (ImportError, RuntimeError):
        return False


def _load(path: Path, device: torch.device, scheme: str, dtype: torch.dtype, laid: Spread | None = None) -> Any:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    options: dict[str, Any] = {"dtype": dtype, "local_files_only": True}
    where: dict[str, Any] = {"device_map": {"": str(device)}}
    if laid is not None:
        where = {"device_map": "auto", "max_memory": laid.max_memory()}
        options |= where
    offload = laid is not None and laid.host > 0  # what lies on the host is not quantized
    if scheme == "nf4":
        quantization = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, llm_int8_enable_fp32_cpu_offload=offload
        )
        options |= {"quantization_config": quantization, **where}
    elif scheme == "int8":  # a threshold would make rows depend on each other
        quantization = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0, llm_int8_enable_fp32_cpu_offload=offload)
        options |= {"quantization_config": quantization, **where}
    folder = str(path)
    if path.is_file():
        folder, options["gguf_file"] = str(path.parent), path.name
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, **options)
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError, NotImplementedError, RuntimeError) as error:
        raise EngineError(
            f"transformers cannot open {path.name}: {str(error).strip().partition(chr(10))[0][:200]}",
            f"The architecture may need a newer transformers or another format of the weights. {AGAIN}",
            kind="architecture",
            detail=str(error),
        ) from error
    return (model if "device_map" in options else model.to(device)).eval()


class HfTarget:
    """`Target` and a drafter's `next` over a transformers causal language model."""

    exact = False
    needs = Needs()  # nothing is exported: draft heads are refused here (`drafters.registry`)
    taps: Tensor | None = None

    def __init__(self, model: Any, context: int, device: torch.device) -> None:
        self.model, self.context, self.device = model, context, device
        self._length = 0
        self._pending = 0  # rows in the cache behind the committed ones
        self._can_crop = self._chunks = True
        self._probe()
        self.max_nodes = MAX_NODES if self._can_crop else 0

    # --- what the model can do ---------------------------------------------------------------------------------------

    def _probe(self) -> None:
        """Run a few tokens whole and in two passes; see the module."""
        ids = [1, 2, 3, 4, 5, 6]
        self._reset()
        try:
            whole = self._forward(ids, len(ids))
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError) as error:
            raise self._refusal(repr(error)) from error
        self.vocab_size = int(whole.shape[-1])
        self._can_crop = bool(self._cache.is_croppable)
        self._reset()
        self._forward(ids[:3], 1)
        continued = self._forward(ids[3:], 3)
        self._chunks = self._agree(whole[3:], continued)
        if not self._chunks:
            self._can_crop = False
            self._reset()
            self._forward(ids[:3], 1)
            singly = torch.cat([self._forward([token], 1) for token in ids[3:]])
            if not self._agree(whole[3:], singly):
                raise self._refusal("a continued pass does not give what one whole pass gives")
        self._reset()

    @staticmethod
    def _agree(a: Tensor, b: Tensor) -> bool:
        """Equal up to the rounding of a low-precision model."""
        return bool((a - b).norm() <= 0.1 * a.norm())

    @staticmethod
    def _refusal(detail: str) -> EngineError:
        return EngineError(
            "This model cannot be run step by step through transformers.",
            "Choose another model; `specchat models` lists some.",
            kind="architecture",
            detail=detail,
        )

    # --- passes ------------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        from transformers import DynamicCache

        self._cache: Any = DynamicCache(config=self.model.config)
        if self._can_crop:
            self._cache.activate_past_recording()
        self._length = self._pending = 0

    @torch.inference_mode()
    def _forward(self, ids: list[int], keep_logits: int) -> Tensor:
        """Append ids to the cache; float32 logits of the last `keep_logits` rows."""
        tokens = torch.tensor([ids], device=self.device)
        out = self.model(input_ids=tokens, cache=self._cache, use_cache=True, logits_to_keep=keep_logits)
        if getattr(out, "cache", None) is not self._cache:
            raise self._refusal("the model keeps no cache of the usual kind")
        logits = out.logits[0, -keep_logits:]
        return logits if logits.dtype == torch.float64 else logits.float()

    def _drop(self, rows: int) -> None:
        """Take the last rows out of the cache. Layers of fixed size also shrink back to it, so this follows every pass."""
        if self._can_crop:
            self._cache.crop(-rows)
            return
        assert rows == 0

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""
        return self._length

    def prefill(
        self,
        ids: list[int],
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        sink: Callable[[int, Tensor], None] | None = None,
    ) -> bool:
        """Append `ids` to the cache, without logits. False when cancelled between passes; what was read stays. `sink` gets nothing."""
        assert self._pending == 0
        done = 0
        while done < len(ids):
            if cancelled is not None and cancelled():
                return False
            n = min(CHUNK - self._length % CHUNK, len(ids) - done)
            if not self._chunks:
                n = len(ids) - done if self._length == 0 else 1
            self._forward(ids[done : done + n], 1)
            self._drop(0)
            self._length += n
            done += n
            if progress is not None and (self._chunks or done == len(ids) or done % 16 == 0):
                progress(done, len(ids))
        return True

    def reread(self, *_: object) -> bool:
        """Never asked for, see `needs`."""
        raise AssertionError("no hidden states here")

    def verify(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        """Root and nodes `tokens` (n+1,), a chain -> float32 logits (n+1, V). Nothing is committed yet."""
        assert parents == tuple(range(len(parents))), "transformers' caches hold chains only"
        assert len(parents) <= self.max_nodes
        assert self._pending == 0
        if self._length + len(tokens) > self.context + self.max_nodes + 1:
            raise EngineError("The text has reached the end of the context.", kind="context")
        logits = self._forward(tokens.tolist(), len(tokens))
        self._pending = len(tokens)
        return logits

    def next(self, ids: list[int]) -> Tensor:
        """Commit `ids` as a chain and return the logits (1, V) behind the last: a drafter's step."""
        if not self._chunks and len(ids) > 1:
            self.prefill(ids[:-1])
            ids = ids[-1:]
        logits = self._forward(ids, 1)
        self._drop(0)
        self._length += len(ids)
        return logits

    def keep(self, rows: tuple[int, ...]) -> None:
        """Commit rows of the last verify, the root (0) first."""
        assert rows == tuple(range(len(rows)))
        self._drop(self._pending - len(rows))
        self._length += len(rows)
        self._pending = 0

    def truncate(self, length: int) -> int:
        """Go back to `length` committed tokens; returns what is left, 0 where the cache cannot go that far back."""
        assert length <= self._length
        if length == self._length and self._pending == 0:
            return length
        if length == self._length and self._can_crop:
            self._drop(self._pending)
            self._pending = 0
        elif length > 0 and self._whole():
            self._drop(self._pending + self._length - length)
            self._pending = 0
            self._length = length
        else:
            self._reset()
        return self._length

    def _whole(self) -> bool:
        """Whether the cache still holds every token: no layer of fixed size has let one go."""
        held = self._length + self._pending
        return self._can_crop and all(
            not hasattr(layer, "activate_past_recording") or held < getattr(layer, "sliding_window", 0) for layer in self._cache.layers
        )

    def memory(self) -> tuple[int, int]:
        """Bytes of weights and of what the cache holds."""
        kv = 0
        for layer in self._cache.layers:
            tensors = [getattr(layer, name, None) for name in _STATE]
            for states in ("conv_states", "recurrent_states"):
                tensors += list(getattr(layer, states, {}).values())
            kv += sum(t.nbytes for t in tensors if isinstance(t, Tensor))
        return int(self.model.get_memory_footprint()), kv

    def close(self) -> None:
        """Drop the tensors."""
        del self.model, self._cache
