"""Layers, blocks and models in float64, with the weights, tokens and cached keys of a call.

They compute by the plain kernel and read no cache of the call: cached keys are drawn again from
their seed. Layers are made one at a time, so that a model needs no room for twice its weights.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attnprof.backends import Attention
from attnprof.models.architecture import AttentionBlock
from attnprof.rope import Rope
from attnprof.workloads.kv_caches import KvCache
from attnprof.workloads.kv_caches.codecs import Codec
from attnprof.workloads.layer import PlainKernels, PlainStack
from attnprof.workloads.networks import Held, Network
from attnprof.workloads.positions import Position, Rotary, position_for
from attnprof.workloads.precision import effective_weight
from attnprof.workloads.transformer.cross import Source
from attnprof.workloads.transformer.ffn import MixtureOfExperts
from attnprof.workloads.transformer.kernels import Kernels
from attnprof.workloads.transformer.model import Transformer
from attnprof.workloads.transformer.step import Segment, Step

if TYPE_CHECKING:
    from attnprof.workloads.scopes import ScopeOperation

MAX_SCORES = 2**25  # made at once, of 8 bytes each


class TwinCache:
    """What one layer's cache holds, in float64; of a quantised one as its codes stand for it."""

    def __init__(
        self, held: Held, codecs: tuple[Codec, ...], num_sequences: int, *, exact: bool
    ) -> None:
        self.shape = held.shape
        self._codecs = () if exact or held.shape.stored == held.shape.dtype else codecs
        k, v = held.tokens()
        self._k = self._rounded(0, k[:num_sequences])
        self._v = None if v is None else self._rounded(1, v[:num_sequences])

    def _rounded(self, number: int, tokens: torch.Tensor) -> torch.Tensor:
        if self._codecs:
            codec = self._codecs[number]
            tokens = codec.decode(codec.encode(tokens))
        return tokens.double()

    def extended(
        self, k: torch.Tensor, v: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What is held and the new tokens; of a rolling cache its window."""
        keys = torch.cat((self._k.to(k.device), self._rounded(0, k)), dim=2)
        if self.shape.kind == "rolling":
            assert self.shape.window_len is not None
            keys = keys[:, :, -self.shape.window_len :]
        if v is None or self._v is None:
            return keys, keys[..., : self.shape.latent_rank]
        values = torch.cat((self._v.to(v.device), self._rounded(1, v)), dim=2)
        return keys, values[:, :, -keys.shape[2] :]


class HeldPair:
    """Keys and values of a source as a quantised cache gives them."""

    def __init__(self, cache: KvCache, num_sequences: int, where: torch.device) -> None:
        k, v = (one[:num_sequences].double().to(where) for one in cache.held())
        self._pair = (k, v)

    def held(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._pair


class _Slices:
    """Experts in float64, each made when it is asked for."""

    def __init__(self, stacked: torch.Tensor) -> None:
        self._stacked = stacked

    def __getitem__(self, number: int) -> torch.Tensor:
        return self._stacked[number].detach().double()


class TwinExperts(MixtureOfExperts):
    """Experts in float64 that take the choices of the call: where two experts score alike, which
    of them is chosen is no error, but all that follows depends on it.

    ``worst_gap`` is how much better the twin's own choice scores, at most.
    """

    def __init__(self, of: MixtureOfExperts, chosen: torch.Tensor, *, trains: bool) -> None:
        nn.Module.__init__(self)
        self.experts, self.worst_gap = of.experts, 0.0
        self._chosen = chosen
        self.router = copy.deepcopy(of.router, unstored(of))
        self.shared = copy.deepcopy(of.shared, unstored(of))
        for name in ("choice_bias", "up", "down", "up_bias", "down_bias"):
            weight = getattr(of, name)
            if weight is not None and not trains and name in ("up", "down"):
                object.__setattr__(self, name, _Slices(weight))
            else:
                setattr(self, name, copy.deepcopy(weight))

    def route(
        self, x: torch.Tensor, chosen: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            own, _ = super().route(x)
            if not torch.equal(own.sort(-1).values, self._chosen.sort(-1).values):
                self.worst_gap = self._gap(x, own)
        return super().route(x, self._chosen)

    def _gap(self, x: torch.Tensor, own: torch.Tensor) -> float:
        """By how much the worst of a token's own experts scores above that of the call, as a share
        of the largest score; of grouped experts the choice is of groups as well, and not told."""
        if self.experts.num_groups > 1:
            return 0.0
        scores: torch.Tensor = self.router(x)
        if self.choice_bias is not None:
            scores = scores.sigmoid() + self.choice_bias
        found, wanted = (scores.gather(-1, one).amin(-1) for one in (self._chosen, own))
        return float((wanted - found).amax() / scores.abs().amax())


class Spread:
    """The largest standard deviation that scores have in any layer, were they all independent."""

    def __init__(self) -> None:
        self.largest = 0.0

    def note(self, q: torch.Tensor, k: torch.Tensor, scale: float) -> None:
        sizes = (one.detach().square().mean().sqrt() for one in (q, k))
        self.largest = max(self.largest, float(math.prod(sizes)) * scale * q.shape[-1] ** 0.5)


class TwinKernels(Kernels):
    """The plain kernel, over some heads at a time where all scores have no room."""

    spread: Spread

    def prepared(
        self, block: AttentionBlock, batch_size: int, q_len: int, kv_len: int
    ) -> Attention:
        kernel = super().prepared(block, batch_size, q_len, kv_len)
        return by_head(kernel, self.spread, block.scale)


class TwinPlainKernels(PlainKernels):
    """The same for layers without a model."""

    spread: Spread

    def prepared(
        self, block: AttentionBlock, batch_size: int, q_len: int, kv_len: int
    ) -> Attention:
        bias = None
        if q_len > 1:
            bias = self.constant_bias(self.op_workload(block, batch_size, q_len, kv_len))
        kernel = super().prepared(block, batch_size, q_len, kv_len)
        return by_head(kernel, self.spread, block.scale, bias)


def by_head(
    attention: Attention,
    spread: Spread,
    scale: float,
    constant_bias: torch.Tensor | None = None,
) -> Attention:
    """A kernel that is called for as many query heads of a KV head at once as have room.

    Args:
        spread: Told how far scores spread.
    """

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: torch.Tensor
    ) -> torch.Tensor:
        spread.note(q, k, scale)
        batch_size, num_q_heads, q_len, _ = q.shape
        at_once = max(1, MAX_SCORES // (batch_size * q_len * k.shape[2]))
        if at_once >= num_q_heads:
            found: torch.Tensor = attention.attend(q, k, v, **more)
            return found
        if constant_bias is not None:
            more.setdefault("bias", constant_bias)
        group = num_q_heads // k.shape[1]
        size = max(size for size in range(1, group + 1) if group % size == 0 and size <= at_once)
        parts = []
        for first in range(0, num_q_heads, size):
            heads, kv_head = slice(first, first + size), first // group
            some = {name: _of_heads(name, one, heads) for name, one in more.items()}
            pair = (k[:, kv_head : kv_head + 1], v[:, kv_head : kv_head + 1])
            parts.append(attention.attend(q[:, heads], *pair, **some))
        return torch.cat(parts, dim=1)

    return replace(attention, attend=attend)


def _of_heads(name: str, tensor: torch.Tensor, heads: slice) -> torch.Tensor:
    """A bias ``[batch, heads or 1, q_len, kv_len]`` or logits ``[heads]`` of some heads."""
    if name != "bias":
        return tensor[heads]
    return tensor if tensor.shape[1] == 1 else tensor[:, heads]


class Twin:
    """The float64 computation beside a call's: the same segments, of fewer sequences or tokens.

    Args:
        exact: Cached keys are not rounded to what they are stored in.
    """

    def __init__(
        self, op: "ScopeOperation", num_sequences: int, num_tokens: int, *, exact: bool = False
    ) -> None:
        self.op, self._exact = op, exact
        self._num_sequences, self._num_tokens = num_sequences, num_tokens
        where = op.device
        self.where = torch.device("cpu") if where.type in ("mps", "xpu") else where
        self.workload = replace(
            op.workload, dtype="float64", backend="eager", kv_dtype=None, weight_dtype=None
        )
        self.kernels: TwinKernels | TwinPlainKernels
        if isinstance(op.inputs.network, PlainStack):
            position = self._position(op.inputs.network.kernels.position)
            self.kernels = TwinPlainKernels(self.workload, self.where, None, position)
        else:
            self.kernels = TwinKernels(self.workload, self.where)
        self.kernels.spread = self.spread = Spread()
        self.worst_gap = 0.0
        self._rotaries: dict[Rope, Rotary] = {}

    def _position(self, of_call: Position) -> Position:
        """The same scheme in float64, with the call's own tables where they are trained."""
        found = position_for(self.workload, self.where, torch.float64, self.op.seed)
        for name in ("table", "_table"):
            table = getattr(of_call, name, None)
            if table is not None and self.workload.position != "sinusoidal":
                setattr(found, name, table.double().to(self.where))
        return found

    def step(self) -> Step:
        """The call's segments with their caches in float64."""
        segments = [self._segment(one) for one in self.op.inputs.segments]
        return Step(segments, self.kernels, self._rotary, keeps=False)

    def _rotary(self, rope: Rope) -> Rotary:
        if rope not in self._rotaries:
            longest = max(self.workload.kv_len, self.workload.prefill_len or 0)
            self._rotaries[rope] = Rotary(rope, longest, self.where, torch.float64)
        return self._rotaries[rope]

    def _segment(self, segment: Segment) -> Segment:
        num_sequences = min(self._num_sequences, segment.batch_size)
        caches: Sequence[Any] | None = None
        if segment.caches is not None:
            caches = [
                self._cache(number, cache, num_sequences)
                for number, cache in enumerate(segment.caches)
            ]
        source = None
        if segment.source is not None:
            source = self.of_source(segment.source)
        num_tokens = min(self._num_tokens, segment.num_tokens)
        return replace(
            segment, batch_size=num_sequences, num_tokens=num_tokens, caches=caches, source=source
        )

    def of_source(self, source: Source) -> Source:
        """The call's states of a source; of a quantised cache what it holds of them."""
        num_sequences = self._num_sequences
        states = source.states[:num_sequences].detach().double().to(self.where)
        caches: Any = None
        if self.rounds and source.caches is not None:
            caches = [HeldPair(cache, num_sequences, self.where) for cache in source.caches]
        return Source(states=states, caches=caches, min_len=source.min_len)

    @property
    def rounds(self) -> bool:
        """Whether cached keys are as their codes stand for them."""
        return self.op.workload.kv_dtype is not None and not self._exact

    def encoded(self, shell: Transformer, read: torch.Tensor) -> Source:
        """A source that the call reads, through the encoder in float64."""
        read = read[: self._num_sequences].to(self.where)
        return Source(states=read.double()) if read.is_floating_point() else shell.encode(read)

    def _cache(self, number: int, cache: Any, num_sequences: int) -> Any:
        if self.op.source is not None and self.rounds:
            return HeldPair(cache, num_sequences, self.where)
        if self.op.source is not None:
            return self.op.source[:num_sequences].detach().double().to(self.where)
        return TwinCache(self.op.held[number], cache.codecs, num_sequences, exact=self._exact)

    def given(self, of_call: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tokens, or states in float64, of the sequences that the twin has."""
        kept = [one[: self._num_sequences, : self._num_tokens].detach() for one in of_call]
        kept = [one.to(self.where) for one in kept]
        return [one.double() if one.is_floating_point() else one for one in kept]

    def embedded(
        self,
        network: Network,
        given: Sequence[torch.Tensor],
        step: Step,
        shell: Transformer | None,
    ) -> torch.Tensor:
        """What the first layer is given; a model's without a ``shell`` by the call's own tables."""
        if shell is not None:
            return shell.embedded(given, step)
        if given[0].is_floating_point():
            return network.embedded(given, step)
        own = network.step(step.segments, keeps=False)
        x = network.embedded(given, own)
        step.biases = [bias.double() for bias in own.biases]
        return x.double()

    def layers(
        self, network: Network, num_layers: int, chosen: dict[int, torch.Tensor]
    ) -> Iterator[nn.Module]:
        """The first layers in float64, one after another."""
        trains = torch.is_grad_enabled()
        for block in list(network.blocks)[:num_layers]:
            layer = doubled(block, chosen, trains=trains).to(self.where)
            yield layer
            gaps = [part.worst_gap for part in layer.modules() if isinstance(part, TwinExperts)]
            self.worst_gap = max([self.worst_gap, *gaps])

    def around(self, network: Transformer) -> Transformer:
        """A model without its layers, in float64."""
        shell = copy.copy(network)
        rest = {name: one for name, one in network._modules.items() if name != "blocks"}
        memo: dict[int, Any] = {id(network.kernels): self.kernels}
        for one in rest.values():
            memo |= {} if one is None else unstored(one)
        shell._modules = copy.deepcopy(rest, memo)
        shell.kernels, shell._rotaries = self.kernels, {}
        if shell.encoder is not None:
            shell.encoder._rotaries = {}
        return shell.double().to(self.where)


def doubled(
    module: nn.Module, chosen: dict[int, torch.Tensor], *, trains: bool = False
) -> nn.Module:
    """A copy in float64: of stored weights what they stand for, of experts with the call's choices.

    Args:
        chosen: Of each mixture of experts in ``module``, by its ``id``.
    """
    memo = unstored(module)
    for part in module.modules():
        if isinstance(part, MixtureOfExperts):
            memo[id(part)] = TwinExperts(part, chosen[id(part)], trains=trains)
    return copy.deepcopy(module, memo).double()


def unstored(module: nn.Module) -> dict[int, Any]:
    """Of stored weights in ``module`` what they stand for, by their ``id``, as a memo of a copy."""
    return {
        id(part.weight): nn.Parameter(effective_weight(part), requires_grad=False)
        for part in module.modules()
        if isinstance(part, nn.Linear) and hasattr(part.weight, "__tensor_flatten__")
    }
