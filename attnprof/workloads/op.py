"""Scope op: attention alone, over a stack of layers that own their queries, keys and values."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from attnprof.backends import ensure_supported, prepare
from attnprof.backends.masks import num_given
from attnprof.measured import Check
from attnprof.workload import GROWING, Workload
from attnprof.workloads.kv_caches import KvCache, Pair, new_cache, unrounded_cache
from attnprof.workloads.operation import Noise, Operation
from attnprof.workloads.places import Place
from attnprof.workloads.positions import position_for
from attnprof.workloads.precision import torch_dtype
from attnprof.workloads.reference import first_query, held_against_reference

LAYER_SEEDS = 104_729  # between the seeds of two layers, so that one can be made by itself


@dataclass
class Layer:
    """The tensors that one layer owns: new queries, keys and values, and a cache of earlier ones.

    Of a cross-attention the cache is all there is: ``k`` and ``v`` hold no token. ``sinks`` is a
    learned logit a query head; ``out_grad`` is what comes back to a training step.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cache: KvCache | None = None
    sinks: torch.Tensor | None = None
    out_grad: torch.Tensor | None = None

    @property
    def first(self) -> int:
        """The position of the first new token."""
        return 0 if self.cache is None else self.cache.length

    def keys_and_values(self, k: torch.Tensor | None = None, *, keep: bool = False) -> Pair:
        """What the queries attend to: of a decode the cache with the new token in it.

        Args:
            k: The new keys turned by their positions, where they are.
            keep: Whether new tokens stay in the cache.
        """
        k = self.k if k is None else k
        if self.cache is None:
            return k, self.v
        if not self.k.shape[2]:
            return self.cache.held()
        return (self.cache.append if keep else self.cache.extended)(k, self.v)


class AttentionCall:
    """The kernel and the positions of one workload, made ready to attend in any layer."""

    def __init__(
        self, workload: Workload, device: torch.device, seed: int, kind: str | None = None
    ) -> None:
        ensure_supported(workload, kind or device.type)
        self.workload = workload
        self.position = position_for(workload, device, torch_dtype(workload.dtype), seed)
        self._first_q, self._given = first_query(workload), num_given(workload)
        self._first_kv = workload.kv_len - self._given
        bias = self.position.constant_bias(
            self._first_q, workload.q_len, self._first_kv, self._given
        )
        self.attention = prepare(workload, device, kind, bias=bias)

    @property
    def held_bytes(self) -> int:
        """Of masks, biases and tables of positions."""
        return self.attention.mask_bytes + self.position.table_bytes

    def attend(self, layer: Layer, *, keep: bool = False) -> torch.Tensor:
        """Attend in one layer; rotations and biases that depend on the queries are made anew.

        A function of its own, so that copies of K and V are gone before the next layer's.
        """
        q, k = layer.q, layer.k
        if layer.k.shape[2]:
            q = self.position.rotate(q, self._first_q)
            k = self.position.rotate(k, layer.first)
        k, v = last_keys(layer.keys_and_values(k, keep=keep), self._given)
        more = {}
        bias = self.position.query_bias(q, self._first_q, self._first_kv, self._given)
        if bias is not None:
            more["bias"] = bias
        if layer.sinks is not None:
            more["sinks"] = layer.sinks
        return self.attention.attend(q, k, v, **more)


class AttentionOp(Operation):
    """Attention over all layers of a workload.

    A kv-growth workload is built as the decode at its end; :func:`~attnprof.workloads.growth.grow`
    runs it from start to end.
    """

    inputs: list[Layer]

    def __init__(
        self, workload: Workload, device: torch.device, seed: int, kind: str | None = None
    ) -> None:
        if workload.phase in GROWING:
            workload = workload.step(workload.kv_len)
        super().__init__(workload, device, seed, kind)

    def prepare(self, kind: str | None) -> None:
        self.call = AttentionCall(self.workload, self.device, self.seed, kind)
        self.compiles = self.call.attention.compiles
        self.operators = self.call.attention.operators

    def allocate(self) -> list[Layer]:
        return build_layers(self.workload, self.device, self.seed, held_len(self.workload))

    def run(self, inputs: list[Layer]) -> Any:
        """Attend in every layer; the output of the last.

        One output is alive at a time, as in a stack whose next layer consumes it.
        """
        out: torch.Tensor | None = None
        for layer in inputs:
            del out
            out = self.call.attend(layer)
        assert out is not None
        return out

    def pinned(self) -> AbstractContextManager[object]:
        return self.call.attention.pinned()

    @property
    def kv_bytes(self) -> int:
        return sum(kv_bytes_of(layer) for layer in self.inputs)

    @property
    def mask_bytes(self) -> int:
        return self.call.held_bytes

    def compared(self, output: Any) -> Check:
        """The output of the last layer.

        New tokens are held against those that came, not against what the cache gives for them.
        """
        workload, layer = self.workload, self.inputs[-1]
        turned = self.call.position.rotate(layer.k, layer.first) if layer.k.shape[2] else layer.k
        cache = layer.cache
        pair = visible(workload, layer.keys_and_values(turned))
        pair = in_order(cache, layer.k.shape[2], pair)
        rounds = cache is not None and workload.cached_dtype != workload.dtype
        new: Pair | None = (layer.k, layer.v) if layer.k.shape[2] else None
        if cache is not None and rounds and new is not None:
            new = cache.rounded(turned, layer.v)
        return held_against_reference(
            workload, layer.q, *pair, output, self.seed,
            place=Place(self.call.position),
            new_k=None if new is None else new[0],
            new_v=None if new is None else new[1],
            new_is_turned=rounds,
            sinks=layer.sinks,
            exact=self._unrounded(layer, turned) if rounds else None,
        )  # fmt: skip

    def _unrounded(self, layer: Layer, turned: torch.Tensor) -> Pair:
        """Keys and values as they were before the last layer's cache stored them in fewer bits."""
        assert layer.cache is not None
        number = len(self.inputs) - 1
        exact = build_layer(
            self.workload, self.device, self.seed, number, held_len(self.workload), rounds=False
        )
        pair = visible(self.workload, exact.keys_and_values(turned))
        return in_order(exact.cache, exact.k.shape[2], pair)


def build_layers(workload: Workload, device: torch.device, seed: int, held_len: int) -> list[Layer]:
    """The tensors of every layer, whose caches hold ``held_len`` tokens."""
    return [
        build_layer(workload, device, seed, number, held_len)
        for number in range(workload.num_layers)
    ]


def build_layer(
    workload: Workload,
    device: torch.device,
    seed: int,
    number: int,
    held_len: int,
    *,
    rounds: bool = True,
) -> Layer:
    """The tensors of one layer.

    Args:
        rounds: False for a cache of the same tokens that stores them in the arithmetic's dtype.
    """
    seed += number * LAYER_SEEDS
    noise = Noise(seed, device)
    dtype = torch_dtype(workload.dtype)
    batch, q_len = workload.batch_size, workload.q_len
    new = 0 if workload.attention == "cross" else q_len

    def noisy(*shape: int) -> torch.Tensor:
        return noise(*shape, dtype=dtype)

    trains = workload.phase == "train"
    out_shape = (batch, workload.num_q_heads, q_len, workload.value_dim)
    layer = Layer(
        q=noisy(batch, workload.num_q_heads, q_len, workload.head_dim),
        k=noisy(batch, workload.num_kv_heads, new, workload.head_dim),
        v=noisy(batch, workload.num_kv_heads, new, workload.value_dim),
        sinks=noisy(workload.num_q_heads) if workload.sink_logits else None,
        out_grad=noisy(*out_shape) if trains else None,
    )
    if workload.kv_cache != "none":
        make = new_cache if rounds else unrounded_cache
        layer.cache = make(workload, held_len, noisy, seed)
    return layer


def held_len(workload: Workload) -> int:
    """Tokens that the caches hold before a call: all but those that it brings."""
    return workload.kv_len - (0 if workload.attention == "cross" else workload.q_len)


def visible(workload: Workload, pair: Pair) -> Pair:
    """The keys and values that the kernel is given: those from the first that any query sees."""
    return last_keys(pair, num_given(workload))


def last_keys(pair: Pair, num_keys: int) -> Pair:
    """The last ``num_keys`` keys and values, as views."""
    k, v = pair
    unseen = k.shape[2] - num_keys
    return (k[:, :, unseen:], v[:, :, unseen:]) if unseen > 0 else pair


def in_order(cache: KvCache | None, num_new: int, pair: Pair) -> Pair:
    """Keys and values by their positions; a ring that has turned gives them in another order."""
    if cache is None or cache.shape.kind != "rolling":
        return pair
    order = cache.positions(num_new).argsort()
    return pair[0][:, :, order], pair[1][:, :, order]


def kv_bytes_of(layer: Layer) -> int:
    """Of a layer's keys and values, those of the new tokens included. [bytes]"""

    if layer.cache is None:
        return layer.k.nbytes + layer.v.nbytes
    return layer.cache.allocated_bytes_with(layer.k.shape[2])
