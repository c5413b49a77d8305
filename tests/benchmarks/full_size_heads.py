"""Draft heads of full published size: written with random weights in their published layout, loaded, and run beside a two-layer target of
the same width. Compares the memory that loading took with what `engine.catalog.fit` had predicted.

Nothing is held in memory while writing: all tensors are views of one mapped file of random numbers. Peak = highest anonymous memory while
loading, minus that before. Each pair runs in a process of its own and takes up to 9 GB of disk at a time; it is deleted afterwards.
Usage: python tests/benchmarks/full_size_heads.py FOLDER [--pairs gumiho-vicuna-7b …] [--quant nf4 int8] [--tokens N] [--shrink N]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.catalog import fit
from engine.drafters.heads import layout
from engine.drafters.heads.specs import TREES, HeadSpec

CONTEXT = 1024
PROMPT = 600  # tokens: more than one chunk
TARGETS: dict[str, dict[str, Any]] = {
    "vicuna-7b": {"hidden": 4096, "intermediate": 11008, "vocab": 32000, "kv_heads": 32, "rope_theta": 10000.0, "rms_eps": 1e-6},
    "llama-3-8b": {"hidden": 4096, "intermediate": 14336, "vocab": 128256, "kv_heads": 8, "rope_theta": 500000.0, "rms_eps": 1e-5},
}
PAIRS = tuple(f"{family}-{target}" for target in TARGETS for family in ("gumiho", "hydra++"))


class Random:
    """Tensors of any size out of one mapped file of random numbers; each has a storage of its own, so that each is saved."""

    def __init__(self, file: Path, largest: int) -> None:
        self._file = file
        block = (torch.randn(1 << 22, generator=torch.Generator().manual_seed(0)) * 0.02).half().numpy().tobytes()
        with file.open("wb") as out:
            for _ in range(-(-2 * largest // len(block))):
                out.write(block)

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        return torch.from_file(str(self._file), shared=True, size=math.prod(shape), dtype=torch.float16).view(shape)


def write_heads(folder: Path, family: str, size: dict[str, Any], random: Random) -> None:
    """Gumiho: `pytorch_model.bin`. Hydra++: `hydra_lm_head.pt`, with its repeated block and the two embeddings that nobody reads."""
    folder.mkdir()
    spec = head_spec(family, size)
    tensors = {name: random.tensor(shape) for name, shape in layout.expected(spec).items()}
    table = (spec.vocab, spec.hidden)
    if family == "hydra++":
        for name in [name for name in tensors if name.split(".")[2] in ("5", "7")]:
            parts = name.split(".")
            tensors[name] = tensors[".".join([*parts[:2], "3", *parts[3:]])]
        tensors |= {"input_embed_fn.weight": random.tensor(table), "prefix_embeding_layer.embed_tokens.weight": random.tensor(table)}
        config: dict[str, Any] = {"hydra_num_heads": 4, "hydra_num_layers": 4, "hydra_head_arch": "prefix-mlp", "grounded_heads": True}
        torch.save(tensors, folder / "hydra_lm_head.pt")
    else:
        config = {
            "num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads, "rms_norm_eps": spec.rms_eps, "bias": False,
            "max_position_embeddings": 2048, "num_hidden_layers": 2, "hidden_act": "silu", "rope_theta": spec.rope_theta,
        }  # fmt: skip
        torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config))


def head_spec(family: str, size: dict[str, Any]) -> HeadSpec:
    common = {"heads": 32, "head_dim": size["hidden"] // 32, "vocab": size["vocab"], "draft_vocab": size["vocab"]}
    common |= {key: size[key] for key in ("hidden", "intermediate", "kv_heads", "rope_theta", "rms_eps")} | {
        "target_hidden": size["hidden"]
    }
    if family == "gumiho":
        own = {"layers": 2, "n_heads": 5, "head_layers": 6, "own_embedding": True, "fc_bias": True}
        return HeadSpec("gumiho", **common, **own, **TREES["gumiho"])
    return HeadSpec("hydra++", **common, layers=1, n_heads=4, head_layers=4, own_lm_head=True, **TREES["hydra++"])


def write_target(folder: Path, size: dict[str, Any], random: Random) -> None:
    """Two layers of a llama of this width."""
    folder.mkdir()
    h, i, v, kv = size["hidden"], size["intermediate"], size["vocab"], size["kv_heads"] * (size["hidden"] // 32)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, h), "lm_head.weight": (v, h), "model.norm.weight": (h,)}
    for at in ("model.layers.0.", "model.layers.1."):
        shapes |= {f"{at}self_attn.{x}_proj.weight": (rows, h) for x, rows in (("q", h), ("k", kv), ("v", kv), ("o", h))}
        shapes |= {f"{at}mlp.gate_proj.weight": (i, h), f"{at}mlp.up_proj.weight": (i, h), f"{at}mlp.down_proj.weight": (h, i)}
        shapes |= {f"{at}{norm}_layernorm.weight": (h,) for norm in ("input", "post_attention")}
    tensors = {n: torch.ones(s, dtype=torch.float16) if "norm" in n else random.tensor(s) for n, s in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": h, "intermediate_size": i, "vocab_size": v,
        "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": size["kv_heads"], "rms_norm_eps": size["rms_eps"],
        "rope_theta": size["rope_theta"], "max_position_embeddings": 4096, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


class Watch:
    """Highest anonymous memory of this process, above that at the beginning."""

    def __init__(self) -> None:
        self.begin = self.peak = anonymous()
        self._go = True
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while self._go:
            self.peak = max(self.peak, anonymous())
            time.sleep(0.002)

    def stop(self) -> int:
        self._go = False
        self._thread.join()
        return max(self.peak, anonymous()) - self.begin


def anonymous() -> int:
    """Bytes that are no mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def child(folder: Path, quant: str, tokens: int) -> dict[str, Any]:
    """Load both, draft, and check that the text is the target's own."""
    from engine.decoder.load import load_weights
    from engine.decoder.target import LeanTarget
    from engine.drafters.heads.build import open_heads

    predicted = fit.estimate(folder / "heads", quant=quant, context=CONTEXT, device="cpu")
    weights = load_weights(folder / "target", device="cpu", quant=quant, use_cache=False)
    target = LeanTarget(weights, CONTEXT)
    plain, _ = reply(target, None, tokens)
    watch = Watch()
    begun = time.perf_counter()
    drafter, _, _ = open_heads("heads", folder / "heads", "auto", target, quant)
    load_s = time.perf_counter() - begun
    peak, held = watch.stop(), anonymous() - watch.begin
    drafted, steps = reply(target, drafter, tokens)
    return {
        "method": drafter.method, "quant": quant, "load_s": round(load_s, 1), "predicted": predicted.weights + fit.PACKING, "peak": peak,
        "predicted_weights": predicted.weights, "held": held, "reported": drafter.memory(), "same_text": plain == drafted,
        "tokens": len(drafted), "steps": steps,
    }  # fmt: skip


def reply(target: Any, drafter: Any, tokens: int) -> tuple[list[int], int]:
    """Greedy tokens behind a fixed prompt, and the steps they took."""
    from engine.speculation.control import Controller
    from engine.speculation.draft import Context, Needs
    from engine.speculation.loop import Limits, generate
    from engine.speculation.sampling import Filters, Picker

    ids = torch.randint(0, target.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(3)).tolist()
    ctx = Context(list(ids), PROMPT, 0, Picker(Filters(), 0), vocab_size=target.vocab_size)
    target.truncate(0)
    target.needs = drafter.needs if drafter is not None else Needs()
    target.prefill(ids[:-1], sink=(lambda start, taps: drafter.absorb(ids, start, taps)) if drafter is not None else None)
    control = Controller()
    control.k = 12
    steps: list[Any] = []
    limits = Limits(tokens, CONTEXT, frozenset())
    generate(target, ctx, limits, control, lambda token: True, steps.append, lambda: False, lambda: drafter)
    return ctx.ids[PROMPT:], len(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", nargs="+", default=PAIRS, choices=PAIRS)
    parser.add_argument("--quant", nargs="+", default=["nf4"], choices=["nf4", "int8", "bf16", "fp16", "fp32"])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--shrink", type=int, default=1, help="divide all sizes by this, for a trial")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.folder, options.child, options.tokens)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for pair in options.pairs:
        family, _, name = pair.partition("-")
        sizes = {key: TARGETS[name][key] // options.shrink for key in ("hidden", "intermediate", "vocab")}
        size = {**TARGETS[name], **sizes}
        place = options.folder / pair
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        random = Random(place / "random", size["hidden"] * max(size["vocab"], size["intermediate"], 5 * size["hidden"]))
        write_target(place / "target", size, random)
        write_heads(place / "heads", family, size, random)
        (place / "random").unlink()
        for quant in options.quant:
            command = [sys.executable, __file__, str(place), "--child", quant, "--tokens", str(options.tokens)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                sys.exit(run.stderr)
            found = json.loads(run.stdout.strip().splitlines()[-1])
            peak, predicted = found["peak"] / 1e6, found["predicted"] / 1e6
            print(f"{pair} {quant}: peak {peak:.0f} MB, predicted {predicted:.0f} MB, ratio {peak / predicted:.2f}", flush=True)
            print(f"  {json.dumps(found)}", flush=True)
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
