"""How well a drafter with another tokenizer drafts: beside an oracle at T = 0, and by method at T = 0.7. See `cross_tokenizer`."""

from __future__ import annotations

from typing import Any

K = 3  # length of the drafts


def quality(target: str, drafter: str, tokens: int, most: int) -> dict[str, Any]:
    """What is kept, beside the oracle; and by method with temperature."""
    from app.prompts import read
    from engine.bridge.maps import vocabulary_map
    from engine.drafters.bridged import made
    from engine.drafters.cross import Cross
    from engine.drafters.slem import Slem
    from engine.speculation.sampling import Filters
    from tests.real import session

    one = session(target, drafter=drafter)
    cross = one.loaded.drafter
    assert isinstance(cross, Cross), f"{target} and {drafter} have the same tokenizer"
    maps = vocabulary_map(cross.side.target, cross.side.drafter)
    prompts = [prompt.text for name in ("code", "questions") for prompt in read(name)[:most]]
    out: dict[str, Any] = {"oracle": [], "methods": {}}
    print(f"{target} <- {drafter}, {len(prompts)} prompts of code and questions, {tokens} tokens, drafts of {K}\n")
    print("T = 0, slem:\n\n| kept | oracle | drafted | prompt |\n| ---: | -----: | ------: | :----- |")
    for prompt in prompts:
        done, steps = _reply(one, prompt, tokens, 0.0)
        row = {"drafted": sum(s.drafted for s in steps), "kept": sum(s.accepted for s in steps), "oracle": _oracle(cross, done, steps)}
        out["oracle"].append(row | {"prompt": prompt})
        print(f"| {row['kept']:4} | {row['oracle']:6} | {row['drafted']:7} | {prompt[:60].splitlines()[0]} |", flush=True)
    kept, oracle = (sum(row[key] for row in out["oracle"]) for key in ("kept", "oracle"))
    out["share"] = kept / max(oracle, 1)
    print(f"\nkept / oracle: {kept} / {oracle} = {out['share']:.3f} (bar: 0.95)\n")
    print("T = 0.7, top-p 0.9:\n\n| method       | rule  | kept % | tokens a step |\n| :----------- | :---- | -----: | ------------: |")
    ways = {"pf": made("pf", maps), "tli": made("tli", maps), "slem sampled": Slem(maps.ends, sampled=True), "slem": made("slem", maps)}
    for name, way in ways.items():
        one.loaded.drafter = Cross(cross.name, cross.side, way, way, Filters())
        for rule in ("match", "ratio"):
            tallies = [one.tally for i, prompt in enumerate(prompts) if _reply(one, prompt, tokens, 0.7, i, rule)]
            row = {"kept": sum(t.accepted for t in tallies) / sum(t.drafted for t in tallies)}
            row["tau"] = sum(t.emitted for t in tallies) / sum(t.steps for t in tallies)
            out["methods"][f"{name}, {rule}"] = row
            print(f"| {name:12} | {rule} | {100 * row['kept']:6.1f} | {row['tau']:13.2f} |", flush=True)
    for rule in ("match", "ratio"):
        rivals = [out["methods"][f"{name}, {rule}"]["kept"] for name in ("tli", "slem sampled")]
        out[f"pf ahead, {rule}"] = out["methods"][f"pf, {rule}"]["kept"] > max(rivals)
        print(f"pf ahead of masked tli and sampled slem, {rule}: {'yes' if out[f'pf ahead, {rule}'] else 'no'}")
    return out


def _reply(one: Any, prompt: str, tokens: int, temperature: float, seed: int = 0, rule: Any = "match") -> tuple[Any, list[Any]]:
    from engine.protocol import Event, Generate, Message, Sampling, Step

    events: list[Event] = []
    sampling = Sampling(temperature, 0.9, 0, 0.0, 1.0)
    command = Generate(1, (Message("user", prompt),), sampling=sampling, seed=seed, max_tokens=tokens, k=K, verify=rule)
    done = one.reply(command, events.append, lambda: False, lambda: None)
    return done, [event for event in events if isinstance(event, Step)]


def _oracle(cross: Any, done: Any, steps: list[Any]) -> int:
    """Drafted tokens that teacher forcing would have kept, at the same places and lengths."""
    import torch

    side = cross.side
    ids = list(done.token_ids)
    own = side.drafter.first(side.target.said(ids))
    read, agreed = [*side._prompt, *own], []
    side.reset()
    side.runner.prefill(read[: len(side._prompt) - 1])
    for at in range(len(side._prompt) - 1, len(read) - 1, 32):
        rows = torch.tensor(read[at : min(at + 32, len(read) - 1)])
        logits = side.runner.verify(rows, tuple(range(len(rows) - 1)))
        side.runner.keep(tuple(range(len(rows))))
        agreed += (logits.argmax(-1) == torch.tensor(read[at + 1 : at + 1 + len(rows)])).tolist()
    side.runner.truncate(0)
    right = [ok for ok, i in zip(agreed, own, strict=True) for _ in side.drafter.spell([i])][len(side.drafter.lead) :]  # by byte
    ends = [0]
    for i in ids:
        ends.append(ends[-1] + len(side.target.spell([i])))
    skip = len(side.target.lead)
    kept = at = 0
    for step in steps:
        for place in range(at, min(at + step.drafted, len(ids))):
            if not all(right[max(ends[place] - skip, 0) : ends[place + 1] - skip]):
                break
            kept += 1
        at += step.emitted
    return kept
