"""Trainable heads of the three kinds. Their state dicts are the published ones, so what is trained is what is written.

Position t of a text is the pair of hidden state t and the token behind it, t + 1, the root. The k-th drafted token (from 0) is token
t + 2 + k. Every network gives for a row t one vector per drafted token, which an LM head turns into a law; as the heads that serve do,
later ones see the true tokens before theirs. The LM head is the target's, or its rows for the shortlist, and frozen: with the little text
that one evening gives, a trained one knows the training prompts and not the others.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from engine.drafters.heads.specs import HeadSpec
from engine.training.batches import Batch
from engine.training.pieces import Block, Layer, Norm, Turns, lead

Embed = Callable[[Tensor], Tensor]  # ids -> vectors, float32
FIRST = re.compile(r"hydra_mlp\.\d+\.1\.(?:linear|res_connection)\.weight")  # of Hydra++ heads: what reads [hidden, embeddings]


class Network(nn.Module):
    """Draft heads in training."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.spec = spec

    @property
    def drafted(self) -> int:
        """Tokens that are drafted in a row."""
        return self.spec.n_heads + self.spec.serial

    @property
    def near(self) -> int:
        """So many of the vectors can come near to hidden states: those of Gumiho's MLP heads end in a gate and can hardly be negative."""
        return self.spec.serial or self.spec.n_heads

    @abstractmethod
    def forward(self, batch: Batch, embed: Embed) -> list[Tensor]:
        """One vector (M, H) per drafted token for the rows of the batch."""


class Rows:
    """The embeddings of a batch, and what stands at its rows."""

    def __init__(self, batch: Batch, embed: Embed) -> None:
        self.embedded = embed(batch.tokens)  # (B, N, H)
        self._text, self._at = batch.text, batch.at

    def token(self, ahead: int) -> Tensor:
        """(M, H): the embedding of token t + 1 + ahead; behind a text's end anything."""
        at = (self._at + 1 + ahead).clamp(max=self.embedded.shape[1] - 1)
        return self.embedded[self._text, at]

    def of(self, x: Tensor) -> Tensor:
        """(B, n, H) -> (M, H)."""
        return x[self._text, self._at]


class Prefix(nn.Module):
    """Hydra++'s layer over all hidden states, and its norm."""

    def __init__(self, spec: HeadSpec, scale: float, device: torch.device) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(spec, input_norm=True)])
        self.norm = Norm(spec.hidden, spec.rms_eps)
        nn.init.constant_(self.norm.weight, scale)  # as large as what comes in
        self._turns = Turns(spec, device)

    def forward(self, hidden: Tensor) -> Tensor:
        x, _ = self.layers[0](hidden, self._turns.at(0, hidden.shape[1]))
        return self.norm(x)


class HydraPlus(Network):
    """Hydra++: heads that read the prefix layer's output and the drafted tokens before theirs."""

    def __init__(self, spec: HeadSpec, lm_head: nn.Linear, scale: float, device: torch.device) -> None:
        super().__init__(spec)
        self.prefix_embeding_layer = Prefix(spec, scale, device)  # the published spelling
        heads = []
        for k in range(spec.n_heads):
            first = Block((k + 2) * spec.hidden, spec.hidden, around=True)
            assert first.res_connection is not None
            lead(first.res_connection, 0, spec.hidden)
            blocks: list[nn.Module] = [nn.Identity(), first]
            again = Block(spec.hidden, spec.hidden, around=False)
            for _ in range(spec.head_layers - 1):  # one object several times, as in the published code
                blocks += [nn.Identity(), again]
            heads.append(nn.ModuleList(blocks))
        self.hydra_mlp = nn.ModuleList(heads)
        self.hydra_lm_head = nn.ModuleList([nn.ModuleList([nn.Identity(), lm_head]) for _ in range(spec.n_heads)])

    def forward(self, batch: Batch, embed: Embed) -> list[Tensor]:
        rows = Rows(batch, embed)
        path = rows.of(self.prefix_embeding_layer(batch.hidden))
        out = []
        for k, blocks in enumerate(self.hydra_mlp):
            path = torch.cat((path, rows.token(k)), dim=-1)
            y = path
            for block in blocks:  # type: ignore[attr-defined]
                y = block(y)
            out.append(y)
        return out


class Medusa(nn.ModuleList):
    """The layers of Medusa-1 heads under their published names, `{head}.{block}.linear` and `{head}.{blocks}.weight`."""

    def __init__(self, spec: HeadSpec, lm_head: nn.Linear | None) -> None:
        heads = []
        for _ in range(spec.n_heads):
            again = Block(spec.hidden, spec.hidden, around=False)
            heads.append(nn.ModuleList([again] * spec.head_layers + ([lm_head] if lm_head is not None else [])))
        super().__init__(heads)
        self._layers = spec.head_layers

    def vectors(self, hidden: Tensor) -> list[Tensor]:
        """(M, H) -> one (M, H) per head."""
        out = []
        for head in self:
            y = hidden
            for block in list(head)[: self._layers]:  # type: ignore[call-overload]
                y = block(y)
            out.append(y)
        return out


class MedusaHeads(Network):
    """Medusa-1: independent heads on the last hidden state."""

    def __init__(self, spec: HeadSpec, lm_head: nn.Linear | None) -> None:
        super().__init__(spec)
        self.heads = Medusa(spec, lm_head)

    def forward(self, batch: Batch, embed: Embed) -> list[Tensor]:
        return self.heads.vectors(batch.hidden[batch.text, batch.at])


class Gumiho(Network):
    """Gumiho: two transformer steps, then MLP heads on the pairs of the two tokens that they drafted."""

    def __init__(self, spec: HeadSpec, lm_head: nn.Linear | None, device: torch.device) -> None:
        super().__init__(spec)
        self.fc = nn.Linear(2 * spec.hidden, spec.hidden)
        lead(self.fc, spec.hidden, spec.hidden)
        with torch.no_grad():  # the token's embedding counts from the beginning
            self.fc.weight[:, : spec.hidden] += torch.randn(spec.hidden, spec.hidden) / spec.hidden**0.5
        self.layers = nn.ModuleList([Layer(spec, input_norm=i > 0) for i in range(spec.layers)])
        heads = []
        for _ in range(spec.n_heads):
            first = Block(2 * spec.hidden, spec.hidden, around=False)
            heads.append(nn.ModuleList([first, *(Block(spec.hidden, spec.hidden, around=False) for _ in range(spec.head_layers - 1))]))
        self.mlp = nn.ModuleList(heads)
        if lm_head is not None:
            self.lm_head = lm_head
        self._turns = Turns(spec, device)

    def forward(self, batch: Batch, embed: Embed) -> list[Tensor]:
        rows, n = Rows(batch, embed), batch.hidden.shape[1]
        embedded = torch.cat((rows.embedded, rows.embedded[:, -1:]), 1)  # one more behind the end, so that every row has a second step
        x = self.fc(torch.cat((embedded[:, 1 : n + 1], batch.hidden), dim=-1))
        pairs = []
        for layer in self.layers:
            x, pair = layer(x, self._turns.at(0, n))
            pairs.append(pair)
        one = x
        second = self.fc(torch.cat((embedded[:, 2 : n + 2], one), dim=-1))
        x = second
        for layer, pair in zip(self.layers, pairs, strict=True):
            x, _ = layer(x, self._turns.at(1, n), pair)
        two = rows.of(x)
        inputs = torch.cat((rows.of(second), self.fc(torch.cat((rows.token(2), two), dim=-1))), dim=-1)
        out = [rows.of(one), two]
        for blocks in self.mlp:
            y = blocks[0].inner(inputs)  # type: ignore[index]
            for block in list(blocks)[1:]:  # type: ignore[call-overload]
                y = block(y)
            out.append(y)
        return out


def build(spec: HeadSpec, rows: Tensor, scale: float, device: torch.device, seed: int) -> Network:
    """New heads. `rows` (S, H) float32 are the target's LM head for the tokens that may be drafted, which heads with LM heads of their
    own share; `scale` is the usual size (root mean square) of a hidden state."""
    torch.manual_seed(seed)
    lm_head: nn.Linear | None = None
    if spec.own_lm_head:
        lm_head = nn.Linear(rows.shape[1], rows.shape[0], bias=spec.family == "hydra++", device="meta")
        lm_head.weight = nn.Parameter(rows, requires_grad=False)
        if spec.family == "hydra++":
            lm_head.bias = nn.Parameter(torch.zeros(rows.shape[0], device=rows.device), requires_grad=False)
    network: Network
    if spec.family == "hydra++":
        assert lm_head is not None
        network = HydraPlus(spec, lm_head, scale, device)
    elif spec.family == "gumiho":
        network = Gumiho(spec, lm_head, device)
    else:
        network = MedusaHeads(spec, lm_head)
    return network.to(device)


def published(network: Network, gain: float = 1.0) -> dict[str, Tensor]:
    """The state dict under its published names. `gain`: embeddings were so many times larger in training than they are, which goes into
    the columns that read them."""
    hidden = network.spec.hidden
    reads = {"hydra++": slice(hidden, None), "gumiho": slice(0, hidden)}.get(network.spec.family)
    out = {name.removeprefix("heads."): tensor for name, tensor in network.state_dict().items()}
    for name, tensor in out.items():
        if reads is not None and (name == "fc.weight" or FIRST.fullmatch(name)):
            out[name] = tensor.clone()
            out[name][:, reads] *= gain
    return out
