"""Scope op, token by token: the prompt's attention, and that of each new token in every layer."""

from contextlib import AbstractContextManager

import torch

from attnprof.backends import prepare
from attnprof.workload import Workload
from attnprof.workloads.growth import CacheBytes, bytes_of_caches
from attnprof.workloads.op import Layer, build_layers, visible


class OpGrower:
    """The layers of attention alone.

    With a cache a step is given its one new token; without, queries, keys and values of all tokens
    so far, as they would come out of the projections again.
    """

    def __init__(
        self, workload: Workload, device: torch.device, seed: int, kind: str | None = None
    ) -> None:
        assert workload.start_len is not None
        self._workload, self._device, self._kind = workload, device, kind
        self._has_cache = workload.kv_cache != "none"
        generates = workload.phase == "generate"
        self._last = workload.step(workload.kv_len)
        self._attention = prepare(self._last, device, kind)
        held_len = 0 if generates else workload.start_len
        self._layers = build_layers(self._last, device, seed, held_len=held_len)
        self._prompt: list[Layer] = []
        if generates:
            self._first = workload.prompt()
            self._prompt_attention = prepare(self._first, device, kind)
            if self._has_cache:
                self._prompt = build_layers(self._first, device, seed + 1, held_len=0)
            else:
                self._prompt = [_cut(layer, workload.start_len) for layer in self._layers]

    def active(self) -> AbstractContextManager[object]:
        return self._attention.pinned()

    def ready(self, kv_len: int) -> None:
        self._step = self._workload.step(kv_len)
        self._attention = prepare(self._step, self._device, self._kind)
        self._now = self._layers
        if not self._has_cache:
            self._now = [_cut(layer, kv_len) for layer in self._layers]

    def prompt(self, *, keep: bool) -> None:
        for layer, given in zip(self._layers, self._prompt, strict=True):
            if keep and layer.cache is not None:
                layer.cache.append(given.k, given.v)
            k, v = visible(self._first, (given.k, given.v))
            self._prompt_attention.attend(given.q, k, v)

    def step(self, *, keep: bool) -> None:
        for layer in self._now:
            if layer.cache is None:
                pair = layer.k, layer.v
            elif keep:
                pair = layer.cache.append(layer.k, layer.v)
            else:
                pair = layer.cache.extended(layer.k, layer.v)
            k, v = visible(self._step, pair)
            self._attention.attend(layer.q, k, v)

    def cache_bytes(self) -> CacheBytes:
        return bytes_of_caches([one.cache for one in self._layers if one.cache is not None])


def _cut(layer: Layer, num_tokens: int) -> Layer:
    """The first tokens of a layer without a cache."""
    first = slice(0, num_tokens)
    return Layer(layer.q[:, :, first], layer.k[:, :, first], layer.v[:, :, first])
