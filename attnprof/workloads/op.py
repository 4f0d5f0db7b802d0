"""Scope op: attention alone, over a stack of layers that own their queries, keys and values."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch

from attnprof.backends import prepare
from attnprof.measured import Check
from attnprof.workload import GROWING, Workload
from attnprof.workloads.kv_caches import KvCache, Pair, new_cache
from attnprof.workloads.operation import Noise, Operation
from attnprof.workloads.precision import torch_dtype
from attnprof.workloads.reference import held_against_reference


@dataclass
class Layer:
    """The tensors that one layer owns: a prefill's K and V, or a decode's new token and cache."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cache: KvCache | None = None

    def keys_and_values(self) -> Pair:
        """What the queries attend to; of a decode the cache with the new token in it."""
        return (self.k, self.v) if self.cache is None else self.cache.extended(self.k, self.v)


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
            workload = replace(workload, phase="decode", start_len=None)
        super().__init__(workload, device, seed, kind)

    def prepare(self, kind: str | None) -> None:
        self.attention = prepare(self.workload, self.device, kind)
        self.compiles, self.operators = self.attention.compiles, self.attention.operators

    def allocate(self) -> list[Layer]:
        return build_layers(
            self.workload, self.device, self.seed, held_len=self.workload.kv_len - 1
        )

    def run(self, inputs: list[Layer]) -> torch.Tensor:
        """Attend in every layer; the output of the last.

        One output is alive at a time, as in a stack whose next layer consumes it.
        """
        out: torch.Tensor | None = None
        for layer in inputs:
            del out
            out = self._attend(layer)
        assert out is not None
        return out

    def _attend(self, layer: Layer) -> torch.Tensor:
        """A function of its own, so that copies of K and V are gone before the next layer's."""
        k, v = visible(self.workload, layer.keys_and_values())
        return self.attention.attend(layer.q, k, v)

    def pinned(self) -> AbstractContextManager[object]:
        return self.attention.pinned()

    @property
    def kv_bytes(self) -> int:
        return sum(_kv_bytes(layer) for layer in self.inputs)

    @property
    def mask_bytes(self) -> int:
        return self.attention.mask_bytes

    def compared(self, output: torch.Tensor) -> Check:
        """The output of the last layer."""
        layer = self.inputs[-1]
        k, v = visible(self.workload, layer.keys_and_values())
        return held_against_reference(self.workload, layer.q, k, v, output, self.seed)


def build_layers(workload: Workload, device: torch.device, seed: int, held_len: int) -> list[Layer]:
    """The tensors of every layer; of a decode the caches hold ``held_len`` tokens."""
    noise = Noise(seed, device)
    dtype = torch_dtype(workload.dtype)
    batch, width = workload.batch_size, workload.head_dim
    q_shape = (batch, workload.num_q_heads, workload.q_len, width)
    kv_shape = (batch, workload.num_kv_heads, workload.q_len, width)

    def cached(*shape: int) -> torch.Tensor:
        return noise(*shape, dtype=dtype)

    layers = []
    for number in range(workload.num_layers):
        q, k, v = noise(*q_shape, dtype=dtype), cached(*kv_shape), cached(*kv_shape)
        has_cache = workload.phase != "prefill"
        cache = new_cache(workload, held_len, cached, seed + number) if has_cache else None
        layers.append(Layer(q, k, v, cache))
    return layers


def visible(workload: Workload, pair: Pair) -> Pair:
    """The keys and values that the kernel is given, in the dtype of the arithmetic.

    A decode in a sliding window is given the end of its cache: its one query sees no more.
    """
    k, v = pair
    window = workload.window_len
    if window is not None and workload.q_len == 1:
        k, v = k[:, :, -window:], v[:, :, -window:]
    dtype = torch_dtype(workload.dtype)
    return k.to(dtype), v.to(dtype)


def _kv_bytes(layer: Layer) -> int:
    if layer.cache is None:
        return layer.k.nbytes + layer.v.nbytes
    return layer.cache.allocated_bytes_with(1)
