"""Multi-head latent attention at scope op: expanded to keys and values of heads, or absorbed.

Source:
    DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, sections 2.1.2 (the latent), 2.1.3 (the
    rotated key that all heads share) and appendix C (the formulas).
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnprof.backends import ensure_supported, prepare
from attnprof.backends.masks import num_given
from attnprof.backends.support import fitted
from attnprof.measured import Check
from attnprof.theory.calls import kernel_calls
from attnprof.workload import Workload
from attnprof.workloads.kv_caches import KvCache, Pair, new_cache, unrounded_cache
from attnprof.workloads.op import LAYER_SEEDS, held_len, in_order, last_keys, visible
from attnprof.workloads.operation import Noise, Operation
from attnprof.workloads.places import Place
from attnprof.workloads.positions import position_for
from attnprof.workloads.precision import torch_dtype
from attnprof.workloads.reference import first_query
from attnprof.workloads.reference_mla import MlaGiven, latent_held_against_reference


@dataclass
class MlaLayer:
    """The tensors that one layer owns.

    ``entries`` are the new tokens' latents, each with its key that all heads share and that is not
    turned yet; ``weight`` makes keys and values of a head from a latent.
    """

    q: torch.Tensor  # [batch, num_q_heads, q_len, head_dim], the part to turn at the end
    entries: torch.Tensor  # [batch, 1, new tokens, kv_lora_rank + rope_head_dim]
    weight: torch.Tensor  # [num_q_heads, head_dim - rope_head_dim + value_dim, kv_lora_rank]
    cache: KvCache | None = None
    sinks: torch.Tensor | None = None

    @property
    def first(self) -> int:
        """The position of the first new token."""
        return 0 if self.cache is None else self.cache.length


class MlaCall:
    """The kernel and the positions of one workload, made ready to attend in any layer."""

    def __init__(
        self, workload: Workload, device: torch.device, seed: int, kind: str | None = None
    ) -> None:
        assert workload.kv_lora_rank is not None and workload.rope_head_dim is not None
        kind = kind or device.type
        ensure_supported(workload, kind)
        self.workload = workload
        self.rank, self.turned_dim = workload.kv_lora_rank, workload.rope_head_dim
        self.plain_dim = workload.head_dim - workload.rope_head_dim
        self.position = position_for(workload, device, torch_dtype(workload.dtype), seed)
        self._first_q, self._given = first_query(workload), num_given(workload)
        (call,) = kernel_calls(workload)
        self._seen = fitted(call, kind)
        scale = workload.head_dim**-0.5
        self.attention = prepare(self._seen, device, kind, scale=scale)

    @property
    def held_bytes(self) -> int:
        """Of masks and tables of positions."""
        return self.attention.mask_bytes + self.position.table_bytes

    def attend(self, layer: MlaLayer, *, keep: bool = False) -> torch.Tensor:
        """Attend in one layer, in the workload's form; ``[batch, num_q_heads, q_len, value_dim]``.

        Args:
            keep: Whether new tokens stay in the cache.
        """
        plain, turned = torch.split(layer.q, [self.plain_dim, self.turned_dim], dim=-1)
        turned = self.position.rotate(turned, self._first_q)
        entries = self.turned_entries(layer)
        sinks = {} if layer.sinks is None else {"sinks": layer.sinks}
        if self.workload.mla == "absorbed":
            q = torch.cat((_by_head(plain, layer.weight[:, : self.plain_dim]), turned), dim=-1)
            k, latents = last_keys(self._with_cached(layer, entries, keep), self._given)
            v = latents if self._seen.value_dim == self.rank else k
            seen = self.attention.attend(q, k, v, **sinks)[..., : self.rank]
            return _by_head(seen, layer.weight[:, self.plain_dim :].transpose(1, 2))
        q = torch.cat((plain, turned), dim=-1)
        k, v = last_keys(self.heads(layer, entries, keep=keep), self._given)
        missing = self._seen.value_dim - v.shape[-1]
        if missing:
            v = torch.nn.functional.pad(v, (0, missing))
        return self.attention.attend(q, k, v, **sinks)[..., : self.workload.value_dim]

    def turned_entries(self, layer: MlaLayer) -> torch.Tensor:
        """The new tokens' latents and shared keys, these turned by their positions."""
        latents, keys = torch.split(layer.entries, [self.rank, self.turned_dim], dim=-1)
        return torch.cat((latents, self.position.rotate(keys, layer.first)), dim=-1)

    def heads(self, layer: MlaLayer, entries: torch.Tensor, *, keep: bool = False) -> Pair:
        """Keys and values of every head: of a cached latent all are expanded in this call, of
        cached heads those of the new tokens."""
        if layer.cache is None or layer.cache.shape.kind != "latent":
            pair = self._expanded(entries, layer.weight)
            if layer.cache is None:
                return pair
            return (layer.cache.append if keep else layer.cache.extended)(*pair)
        entries, _ = last_keys(self._with_cached(layer, entries, keep), self._given)
        return self._expanded(entries, layer.weight)

    def _with_cached(self, layer: MlaLayer, entries: torch.Tensor, keep: bool) -> Pair:
        """Entries of all tokens, and the latents in them."""
        if layer.cache is None:
            return entries, entries[..., : self.rank]
        return (layer.cache.append if keep else layer.cache.extended)(entries)

    def _expanded(self, entries: torch.Tensor, weight: torch.Tensor) -> Pair:
        """One matrix product for keys and values of all heads, as in a projection that is merged
        for both; the shared key is copied to every head."""
        batch, _, length, _ = entries.shape
        num_heads = weight.shape[0]
        latents, keys = torch.split(entries, [self.rank, self.turned_dim], dim=-1)
        made = latents.reshape(batch, length, self.rank) @ weight.flatten(0, 1).T
        by_head = made.view(batch, length, num_heads, -1).transpose(1, 2)
        k = torch.cat((by_head[..., : self.plain_dim], keys.expand(-1, num_heads, -1, -1)), dim=-1)
        return k, by_head[..., self.plain_dim :]


def _by_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x [batch, heads, tokens, in]`` by ``weight [heads, in, out]``, each head by its own."""
    batch, num_heads, tokens, width = x.shape
    rows = x.transpose(0, 1).reshape(num_heads, batch * tokens, width)
    return (rows @ weight).view(num_heads, batch, tokens, -1).transpose(0, 1)


class MlaOp(Operation):
    """Latent attention over all layers of a workload, each with its weights.

    ``expanded`` makes keys and values of every head and attends as any other attention does: of
    all tokens in each call where the latent is cached. ``absorbed`` takes the matrices to the
    queries and to the output instead, so that all heads attend to the latent itself.
    """

    inputs: list[MlaLayer]

    def prepare(self, kind: str | None) -> None:
        self.call = MlaCall(self.workload, self.device, self.seed, kind)
        self.compiles = self.call.attention.compiles
        self.operators = self.call.attention.operators

    def allocate(self) -> list[MlaLayer]:
        return build_mla_layers(self.workload, self.device, self.seed, held_len(self.workload))

    def run(self, inputs: list[MlaLayer]) -> Any:
        """Attend in every layer; the output of the last."""
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
    def weight_bytes(self) -> int:
        return sum(layer.weight.nbytes for layer in self.inputs)

    @property
    def mask_bytes(self) -> int:
        return self.call.held_bytes

    def compared(self, output: Any) -> Check:
        """The output of the last layer, by the expanded form whatever form it was had in."""
        given = self._given(self.inputs[-1])
        workload = self.workload
        if workload.cached_dtype != workload.dtype:
            last = len(self.inputs) - 1
            unrounded = build_mla_layer(
                workload, self.device, self.seed, last, held_len(workload), rounds=False
            )
            given = replace(given, exact=self._given(unrounded))
        return latent_held_against_reference(
            workload, given, output, self.seed, Place(self.call.position)
        )

    def _given(self, layer: MlaLayer) -> MlaGiven:
        """What the layer's cache gives with the new tokens in it, and these as they came."""
        entries, cache, workload = self.call.turned_entries(layer), layer.cache, self.workload
        given = MlaGiven(
            q=layer.q, weight=layer.weight, sinks=layer.sinks, new=layer.entries,
            rounds=cache is not None and cache.shape.stored != workload.dtype,
        )  # fmt: skip
        if cache is None:
            return replace(given, entries=visible(workload, (entries, entries))[0])
        if cache.shape.kind == "latent":
            if given.rounds:
                given = replace(given, rounded=cache.rounded(entries)[0])
            return replace(given, entries=visible(workload, cache.extended(entries))[0])
        heads = visible(workload, self.call.heads(layer, entries))
        return replace(given, heads=in_order(cache, layer.entries.shape[2], heads))


def build_mla_layers(
    workload: Workload, device: torch.device, seed: int, held: int
) -> list[MlaLayer]:
    """The tensors of every layer, whose caches hold ``held`` tokens."""
    return [
        build_mla_layer(workload, device, seed, number, held)
        for number in range(workload.num_layers)
    ]


def build_mla_layer(
    workload: Workload,
    device: torch.device,
    seed: int,
    number: int,
    held: int,
    *,
    rounds: bool = True,
) -> MlaLayer:
    """The tensors of one layer; weights are as large as keep keys and values of unit size.

    Args:
        rounds: False for a cache of the same tokens that stores them in the arithmetic's dtype.
    """
    assert workload.kv_lora_rank is not None and workload.rope_head_dim is not None
    seed += number * LAYER_SEEDS
    noise = Noise(seed, device)
    dtype = torch_dtype(workload.dtype)
    batch, heads, rank = workload.batch_size, workload.num_q_heads, workload.kv_lora_rank
    made_dim = workload.head_dim - workload.rope_head_dim + workload.value_dim

    def noisy(*shape: int) -> torch.Tensor:
        return noise(*shape, dtype=dtype)

    layer = MlaLayer(
        q=noisy(batch, heads, workload.q_len, workload.head_dim),
        entries=noisy(batch, 1, workload.q_len, rank + workload.rope_head_dim),
        weight=noisy(heads, made_dim, rank).mul_(rank**-0.5),
        sinks=noisy(heads) if workload.sink_logits else None,
    )
    if workload.kv_cache != "none":
        make = new_cache if rounds else unrounded_cache
        layer.cache = make(workload, held, noisy, seed)
    return layer


def kv_bytes_of(layer: MlaLayer) -> int:
    """Of a layer's latents, those of the new tokens included. [bytes]"""

    if layer.cache is None:
        return layer.entries.nbytes
    return layer.cache.allocated_bytes_with(layer.entries.shape[2])
