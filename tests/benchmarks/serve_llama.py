"""llama.cpp as a lane of a benchmark, through llama-cpp-python: one JSON question a line, one JSON answer.

    PYTHON tests/benchmarks/serve_llama.py FILE.gguf plain|look-up THREADS [CONTEXT]

PYTHON is any interpreter that has llama-cpp-python; nothing else of this project is needed there. Greedy; the chat template is the file's.
`look-up` is the library's own prompt look-up; on CPUs its authors advise drafts of 2 tokens.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.children import peak_bytes

DRAFT = 2  # tokens


def main() -> None:
    """Answer questions until there are no more."""
    import llama_cpp
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    path, mode, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    context = int(sys.argv[4]) if len(sys.argv) > 4 else 4096
    begun = time.perf_counter()
    model: Any = llama_cpp.Llama(
        path, n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=DRAFT) if mode == "look-up" else None,
    )  # fmt: skip
    ends = {name: model._model.token_get_text(i) if i >= 0 else "" for name, i in (("bos", model.token_bos()), ("eos", model.token_eos()))}
    template = Jinja2ChatFormatter(model.metadata["tokenizer.chat_template"], eos_token=ends["eos"], bos_token=ends["bos"])
    kind = model.metadata.get("general.file_type", "?")
    kinds = {"2": "Q4_0", "3": "Q4_1", "7": "Q8_0", "14": "Q4_K_S", "15": "Q4_K_M", "17": "Q5_K_M", "18": "Q6_K"}
    weights = kinds.get(kind, f"type {kind}")
    said = {"weights": f"{weights} (llama-cpp-python {llama_cpp.__version__})", "load_s": time.perf_counter() - begun, "peak": peak_bytes()}
    flags = llama_cpp.llama_print_system_info().decode()
    said["about"] = "runs with " + ", ".join(re.findall(r"(\w+) = 1", flags))
    print(json.dumps(said), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        text = template(messages=[{"role": "user", "content": question["prompt"]}]).prompt
        ids = model.tokenize(text.encode(), add_bos=False, special=True)
        begun, new, times = time.perf_counter(), [], []
        for token in model.generate(ids, temp=0.0, repeat_penalty=1.0):
            times.append(time.perf_counter())
            new.append(token)
            if len(new) == question["tokens"] or llama_cpp.llama_vocab_is_eog(model._model.vocab, token):
                break
        answer = {"tokens": len(new) - 1, "seconds": times[-1] - times[0], "first_s": times[0] - begun, "prompt_tokens": len(ids)}
        answer |= {"text": model.detokenize(new).decode(errors="replace"), "peak": peak_bytes()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
