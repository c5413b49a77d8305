"""transformers as a lane of a benchmark: `generate`, one JSON question a line, one JSON answer.

    python tests/benchmarks/serve_transformers.py --target NAME [--same NAME] [--other NAME]

Modes: plain, same (assisted generation by a model of the same family), other (an assistant with another tokenizer), look-up (of 3 tokens in
the prompt). Weights are bitsandbytes nf4 made from bf16 safetensors, LM head and embedding in bf16: what `from_pretrained` gives.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, StoppingCriteria, StoppingCriteriaList  # noqa: E402
from transformers.utils import logging  # noqa: E402

from engine.machine import use_physical_cores  # noqa: E402
from tests.benchmarks.children import peak_bytes  # noqa: E402
from tests.benchmarks.vs_transformers import as_safetensors  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()
LOOK_UP = 3  # tokens
WEIGHTS = "nf4, head bf16"


class Clock(StoppingCriteria):
    """Stops nothing: notes when each round of `generate` had ended, and how long the text was."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
        self.seen.append((time.perf_counter(), input_ids.shape[1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def load(name: str) -> Any:
    """A model in 4 bits."""
    quantizer = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    where = as_safetensors(name)
    return AutoModelForCausalLM.from_pretrained(where, dtype=torch.bfloat16, quantization_config=quantizer, device_map="cpu").eval()


def main() -> None:
    """Answer questions until there are no more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--same", default="")
    parser.add_argument("--other", default="")
    given = parser.parse_args()
    use_physical_cores()
    tokenizer = AutoTokenizer.from_pretrained(as_safetensors(given.target))
    model = load(given.target)
    extra: dict[str, dict[str, Any]] = {"plain": {}, "look-up": {"prompt_lookup_num_tokens": LOOK_UP}}
    if given.same:
        extra["same"] = {"assistant_model": load(given.same)}
    if given.other:
        assistant_tokenizer = AutoTokenizer.from_pretrained(as_safetensors(given.other))
        extra["other"] = {"assistant_model": load(given.other), "tokenizer": tokenizer, "assistant_tokenizer": assistant_tokenizer}
    print(json.dumps({"weights": WEIGHTS, "peak": peak_bytes()}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question["prompt"]}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        clock, before = Clock(), ids["input_ids"].shape[1]
        begun = time.perf_counter()
        out = model.generate(
            **ids, do_sample=False, repetition_penalty=1.0, max_new_tokens=question["tokens"],
            stopping_criteria=StoppingCriteriaList([clock]), **extra[question.get("mode", "plain")],
        )  # fmt: skip
        (first_s, first), (last_s, last) = clock.seen[0], clock.seen[-1]
        answer = {"tokens": last - first, "seconds": last_s - first_s, "first_s": first_s - begun, "prompt_tokens": before}
        answer |= {"text": tokenizer.decode(out[0, before:], skip_special_tokens=True), "rounds": len(clock.seen), "peak": peak_bytes()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
