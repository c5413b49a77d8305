"""Tiny models in folders, with a tokenizer and a chat template, for everything that goes through a whole load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.catalog.specs import ModelSpec

SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _tokenizer(shift: int) -> Tokenizer:
    """One token a byte; `shift` gives the bytes other ids."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: (i + shift) % 256 for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def tiny_model(folder: Path, seed: int = 0, shift: int = 0, **config: Any) -> Path:
    """A random llama of two layers whose shapes every number format can take. The same seed, the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_tokenizer(shift), eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**(sizes | config))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.0 if "embed" in name else 6.0)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.eos_token_id, "temperature": 0.9, "top_p": 0.95}))
    return folder


def spec_of(folder: Path, role: str = "target", **more: Any) -> ModelSpec:
    """A catalog entry for a folder."""
    return ModelSpec(folder.name, role=role, path=folder, **more)  # type: ignore[arg-type]
