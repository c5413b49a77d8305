"""Trainable heads are the published ones: their names and shapes, and the numbers that the serving heads give for the same weights."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from engine.decoder.target import LeanTarget
from engine.drafters.heads import layout
from engine.drafters.heads.build import build
from engine.drafters.heads.drafter import HeadsDrafter
from engine.drafters.heads.gumiho import Gumiho
from engine.drafters.heads.hydra import Hydra
from engine.drafters.heads.medusa import Medusa
from engine.training import batches, losses, shortlist, sizes
from engine.training.losses import Taught
from engine.training.network import Network, published
from engine.training.protocol import Kind
from tests.engine.training.worlds import KINDS, plain_target, some_heads, some_text

VOCAB = 64


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [24, VOCAB])
def test_the_state_dict_is_the_published_layout(kind: Kind, rows: int) -> None:
    heads, _, _ = some_heads(kind, plain_target(vocab=VOCAB), rows)
    wanted = layout.expected(heads.spec)
    wanted.pop("embed_tokens.weight", None)  # the target's, added when it is written
    assert {name: tuple(tensor.shape) for name, tensor in published(heads).items()} == wanted


def serving(heads: Network, ids: torch.Tensor, target: LeanTarget) -> HeadsDrafter:
    """The same weights as they serve."""
    tensors = published(heads)
    if heads.spec.draft_vocab != heads.spec.vocab:
        tensors["d2t"] = ids - torch.arange(len(ids))
    if heads.spec.own_embedding:
        tensors["embed_tokens.weight"] = target.model.weights.embed
    drafter, _ = build("heads", heads.spec, tensors, target, "fp32")
    return drafter


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_serving_give_the_same_numbers(kind: Kind) -> None:
    """For every place of a text: the logits behind the true tokens."""
    target = plain_target(vocab=VOCAB)
    heads, ids, taught = some_heads(kind, target, 24)
    text = some_text(0, 18, 5, 16, VOCAB)
    batch = batches.build([text], 3, shortlist.columns(ids, VOCAB))
    with torch.no_grad():
        logits = [torch.nn.functional.linear(vector, taught.rows) for vector in heads(batch, taught.embed)]
    drafter = serving(heads, ids, target)
    for row, t in enumerate(batch.at.tolist()):
        head = drafter.head
        head.truncate(0)
        head.extend(text.ids[1 : t + 2], text.hidden[: t + 1])
        after = [int(text.ids[min(t + 1 + k, len(text.ids) - 1)]) for k in range(3)]
        for k, expected in enumerate(true_path(head, after)):
            if batch.labels[row, k] >= 0:
                assert torch.allclose(logits[k][row], expected, atol=2e-4), (t, k)


def true_path(head: object, after: list[int]) -> list[torch.Tensor]:
    """Logits of each drafted token when the true ones stand before it: `after` are the root and those behind it."""
    if isinstance(head, Medusa):
        return [head.logits(k)[0] for k in range(3)]
    if isinstance(head, Hydra):
        return [head.expand(k, [0], [after[k]])[0] for k in range(3)]
    assert isinstance(head, Gumiho)
    h1 = head.features.begin()
    h2 = head.features.level(1, [0], [after[1]])
    vector = head.mlp(0, head.pairs([after[1]], h1, [after[2]], h2))
    return [head._shared.logits(x)[0] for x in (h1, h2, vector)]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_do_not_see_each_other(kind: Kind) -> None:
    """Beside another text, padded, a text's rows have the same vectors."""
    target = plain_target(vocab=VOCAB)
    heads, ids, taught = some_heads(kind, target, 24)
    columns = shortlist.columns(ids, VOCAB)
    texts = [some_text(0, 11, 5, 16, VOCAB), some_text(1, 25, 3, 16, VOCAB)]
    with torch.no_grad():
        both = heads(batches.build(texts, 3, columns), taught.embed)
        alone = heads(batches.build(texts[:1], 3, columns), taught.embed)
    for k in range(3):
        n = len(alone[k]) - k  # the last rows have fewer tokens to draft
        assert torch.allclose(both[k][:n], alone[k][:n], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_in_blocks_are_those_of_the_whole(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    target = plain_target(vocab=VOCAB)
    heads, ids, taught = some_heads(kind, target, 24)
    batch = batches.build([some_text(n, 20 + n, 4, 16, VOCAB) for n in range(3)], 3, shortlist.columns(ids, VOCAB))
    expected = naive(heads, batch, taught)
    for blocks in (1 << 24, 24 * 7):
        monkeypatch.setattr(losses, "LOGITS", blocks)
        heads.zero_grad(set_to_none=True)
        assert losses.backward(heads, batch, taught) == pytest.approx(expected[0], rel=1e-5)
        for name, parameter in heads.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad is not None, name
                assert torch.allclose(parameter.grad, expected[1][name], atol=1e-4, rtol=1e-3), name


def naive(heads: Network, batch: batches.Batch, taught: Taught) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss as a sentence says it, row by row."""
    heads.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for k, vector in enumerate(heads(batch, taught.embed)):
        weight, count = losses.FALL**k, int((batch.labels[:, k] >= 0).sum())
        for row in range(len(vector)):
            law = torch.log_softmax(taught.rows @ vector[row], -1)
            for column, chance in zip(batch.soft_ids[row, k].tolist(), batch.soft_chances[row, k].tolist(), strict=True):
                if column >= 0:
                    total = total - weight / count * chance * law[column]
        if k < heads.near:
            which, goal = batch.goal(k)
            total = total + weight * losses.NEAR * torch.nn.functional.smooth_l1_loss(vector[which], goal)
    total.backward()  # type: ignore[no-untyped-call]
    return total.item(), {name: p.grad.clone() for name, p in heads.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_halves_come_near_and_nothing_is_warned_of(kind: Kind) -> None:
    """torch warns where it takes a slow way, once a process, in the middle of the live screen."""
    target = plain_target(vocab=VOCAB)
    heads, ids, taught = some_heads(kind, target, 24)
    batch = batches.build([some_text(n, 20 + n, 4, 16, VOCAB) for n in range(3)], 3, shortlist.columns(ids, VOCAB))
    loss, gradients = naive(heads, batch, taught)
    heads.zero_grad(set_to_none=True)
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert losses.backward(heads, batch, replace(taught, half=True)) == pytest.approx(loss, rel=0.02)
    finally:
        torch.set_warn_always(False)
    half = torch.cat([p.grad.flatten() for p in heads.parameters() if p.grad is not None])
    assert torch.cosine_similarity(half, torch.cat([gradient.flatten() for gradient in gradients.values()]), dim=0) > 0.95


def test_fresh_heads_pass_on_the_hidden_state() -> None:
    """Before training Hydra++ repeats what it is given, in its usual size: training begins from the target's own features."""
    target = plain_target(vocab=VOCAB)
    spec = sizes.sized("hydra++", target.model.config, "tiny", 3, 24)
    from engine.training import network

    heads = network.build(spec, torch.randn(24, 16), 2.0, torch.device("cpu"), 1)
    text = some_text(0, 30, 4, 16, VOCAB)
    batch = batches.build([text], 3, torch.full((VOCAB,), -1))
    with torch.no_grad():
        vector = heads(batch, lambda tokens: 0.01 * target.model.embed(tokens))[0]
    given = batch.hidden[batch.text, batch.at]
    assert torch.cosine_similarity(vector, given, dim=-1).min() > 0.8


def test_gumiho_drafts_at_least_three() -> None:
    from engine.errors import EngineError

    with pytest.raises(EngineError, match="at least 3"):
        sizes.sized("gumiho", plain_target().model.config, "tiny", 2, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gain_of_embeddings_goes_into_the_weights(kind: Kind) -> None:
    """Trained with embeddings five times as large, written with the columns five times as large: the same vectors."""
    target = plain_target(vocab=VOCAB)
    heads, ids, taught = some_heads(kind, target, 24)
    batch = batches.build([some_text(0, 18, 5, 16, VOCAB)], 3, shortlist.columns(ids, VOCAB))
    with torch.no_grad():
        before = heads(batch, lambda tokens: 5.0 * taught.embed(tokens))
        state = {("heads." if kind == "medusa" else "") + name: tensor for name, tensor in published(heads, 5.0).items()}
        assert all(torch.equal(published(heads)[name], published(heads, 1.0)[name]) for name in published(heads))
        heads.load_state_dict(state)
        after = heads(batch, taught.embed)
    assert all(torch.allclose(x, y, atol=1e-4) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", ["hydra++", "gumiho"])
def test_serving_heads_know_the_gain(kind: Kind) -> None:
    target = plain_target(vocab=VOCAB)
    heads, ids, taught = some_heads(kind, target, 24)
    text = some_text(0, 12, 5, 16, VOCAB)
    batch = batches.build([text], 3, shortlist.columns(ids, VOCAB))
    with torch.no_grad():
        vectors = heads(batch, lambda tokens: 4.0 * taught.embed(tokens))
    heads.spec = replace(heads.spec, embedding_gain=4.0)
    head = serving(heads, ids, target).head
    head.extend(text.ids[1:5], text.hidden[:4])
    after = [int(token) for token in text.ids[4:7]]
    for k, expected in enumerate(true_path(head, after)):
        assert torch.allclose(taught.rows @ vectors[k][0], expected, atol=2e-4)


def test_the_gain_makes_embeddings_about_as_large_as_hidden_states() -> None:
    """A power of two, so that it rounds nothing."""
    target = plain_target(vocab=VOCAB)
    gain = shortlist.embedding_gain(target.model, torch.arange(VOCAB), 300.0)
    assert 300 / 2**0.5 <= (gain * target.model.weights.embed).pow(2).mean().sqrt().item() <= 300 * 2**0.5
    assert gain == 2.0 ** round(torch.tensor(gain).log2().item())
