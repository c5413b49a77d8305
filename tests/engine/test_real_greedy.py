"""The lean decoder in float32 writes what transformers' greedy `generate` writes, on real models."""

from __future__ import annotations

import gc

import pytest
import torch

from engine.decoder.load import load_weights
from engine.decoder.target import LeanTarget
from engine.decoder.tokenizer import load_tokenizer
from engine.machine import use_physical_cores
from engine.protocol import Message
from tests.real import GEMMA, PROMPTS, Q05, Q15, SMOL, find

pytestmark = pytest.mark.real
TOKENS = 96
LONG = "The lighthouse keeper climbed the stairs, counted the steps and wrote the number into the book. " * 34  # past the 512 window


def prompts_for(name: str, count: int) -> list[str]:
    """Chat prompts; for Gemma the text is longer than its sliding window."""
    return [LONG + prompt if name == GEMMA else prompt for prompt in PROMPTS[:count]]


def ours(path, ids_of: list[list[int]]) -> list[list[int]]:
    target = LeanTarget(load_weights(path, device="cpu", quant="fp32", head="fp32"), 2048)
    out = []
    for prompt in ids_of:
        target.truncate(0)
        target.prefill(prompt[:-1])
        ids = [prompt[-1]]
        for _ in range(TOKENS):
            ids.append(int(target.verify(torch.tensor(ids[-1:]), ())[0].argmax()))
            target.keep((0,))
        out.append(ids[1:])
    return out


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param(SMOL, 3, marks=pytest.mark.quick, id="smollm2-quick"),
        pytest.param(SMOL, 10, id="smollm2"),
        pytest.param(Q05, 10, id="qwen-0.5b"),
        pytest.param(GEMMA, 10, id="gemma"),
        pytest.param(Q15, 10, id="qwen-1.5b"),
    ],
)
def test_greedy_ids_equal_transformers(name: str, count: int) -> None:
    from transformers import AutoModelForCausalLM, GgufConfig

    _, path = find(name)
    use_physical_cores()
    tokenizer = load_tokenizer(path)
    ids_of = [tokenizer.render([Message("user", prompt)]) for prompt in prompts_for(name, count)]
    if name == GEMMA:
        assert min(len(ids) for ids in ids_of) > 600
    mine = ours(path, ids_of)
    gc.collect()
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    ).eval()
    model.generation_config.eos_token_id = None  # go on to the same length
    for prompt, got in zip(ids_of, mine, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, repetition_penalty=1.0, max_new_tokens=TOKENS, min_new_tokens=TOKENS
        )
        assert got == out[0, len(prompt) :].tolist()
