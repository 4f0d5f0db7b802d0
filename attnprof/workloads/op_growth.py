"""Scope op, token by token: the prompt's attention, and that of each new token in every layer."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any

import torch

from attnprof.workload import Workload
from attnprof.workloads.growth import CacheBytes, bytes_of_caches
from attnprof.workloads.kv_caches import CacheShape, KvCache, Pair
from attnprof.workloads.mla import MlaCall, MlaLayer, build_mla_layers
from attnprof.workloads.op import AttentionCall, build_layers

_BY_TOKEN = ("q", "k", "v", "entries")  # tensors of a layer with a token in each row


class OpGrower:
    """The layers of attention alone, of heads or of a latent.

    With a cache a step is given its one new token; without, queries, keys and values of all tokens
    so far, as they would come out of the projections again. A prompt attends to its own keys and
    values while they are put into the cache.
    """

    def __init__(
        self, workload: Workload, device: torch.device, seed: int, kind: str | None = None
    ) -> None:
        assert workload.start_len is not None
        self._workload, self._about = workload, (device, seed, kind)
        self._has_cache = workload.kv_cache != "none"
        generates = workload.phase == "generate"
        last = workload.step(workload.kv_len)
        self._call = self._called(last)
        held_len = 0 if generates else workload.start_len
        self._layers = _built(last, device, seed, held_len)
        self._now: Sequence[Any] = self._layers
        if generates:
            self._prompt_call = self._called(workload.prompt())
            self._prompt = self._prompt_layers(device, seed + 1)

    def _called(self, workload: Workload) -> AttentionCall | MlaCall:
        return (AttentionCall if workload.mla is None else MlaCall)(workload, *self._about)

    def _prompt_layers(self, device: torch.device, seed: int) -> Sequence[Any]:
        prompt = self._workload.prompt()
        if not self._has_cache:
            return [_cut(layer, prompt.kv_len) for layer in self._layers]
        layers = _built(prompt, device, seed, 0)
        for layer, filled in zip(layers, self._layers, strict=True):
            layer.cache = _OnlyWritten(filled.cache)
            if isinstance(layer, MlaLayer):
                layer.weight = filled.weight
        return layers

    def active(self) -> AbstractContextManager[object]:
        return self._call.attention.pinned()

    def ready(self, kv_len: int) -> None:
        self._call = self._called(self._workload.step(kv_len))
        if not self._has_cache:
            self._now = [_cut(layer, kv_len) for layer in self._layers]

    def prompt(self, *, keep: bool) -> torch.Tensor | None:
        return _attended(self._prompt_call, self._prompt, keep)

    def step(self, *, keep: bool) -> torch.Tensor | None:
        return _attended(self._call, self._now, keep)

    def cache_bytes(self) -> CacheBytes:
        return bytes_of_caches(self.caches)

    @property
    def caches(self) -> list[KvCache]:
        """Of every layer; none where everything is computed anew."""
        return [layer.cache for layer in self._layers if layer.cache is not None]


class _OnlyWritten:
    """An empty cache to the prompt that is put into it: it gives back what it is given."""

    length = 0

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache

    @property
    def shape(self) -> CacheShape:
        return self._cache.shape

    def append(self, k: torch.Tensor, v: torch.Tensor | None = None) -> Pair:
        self._cache.put(k, v)
        return self.extended(k, v)

    def extended(self, k: torch.Tensor, v: torch.Tensor | None = None) -> Pair:
        return k, k[..., : self.shape.latent_rank] if v is None else v


def _attended(call: Any, layers: Sequence[Any], keep: bool) -> torch.Tensor | None:
    """Attend in every layer, one output alive at a time; that of the last."""
    out: torch.Tensor | None = None
    for layer in layers:
        del out
        out = call.attend(layer, keep=keep)
    return out


def _built(workload: Workload, device: torch.device, seed: int, held_len: int) -> Sequence[Any]:
    build: Any = build_layers if workload.mla is None else build_mla_layers
    layers: Sequence[Any] = build(workload, device, seed, held_len)
    return layers


def _cut(layer: Any, num_tokens: int) -> Any:
    """The first tokens of a layer without a cache."""
    by_token = [field.name for field in fields(layer) if field.name in _BY_TOKEN]
    first = {name: getattr(layer, name)[:, :, :num_tokens] for name in by_token}
    return replace(layer, **first)
