"""A workload of scope layer, or of scope block without a model, as plain torch modules.

They compute over the steps of :mod:`attnprof.workloads.transformer`, whose blocks, latent
attention and feed-forward parts they are made of; what a layer attends with is the workload's own:
its heads, who sees whom, where tokens are, and the source of keys and values.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from attnprof.backends import Attention, prepare
from attnprof.backends.masks import num_given
from attnprof.models.architecture import AttentionBlock, Block, Experts, Ffn, Latent, Norm
from attnprof.positions import POSITIONS
from attnprof.rope import Rope, rope_named
from attnprof.variants import PARAMETERS
from attnprof.workload import Workload
from attnprof.workloads.positions import Position, Rotary
from attnprof.workloads.precision import torch_dtype
from attnprof.workloads.transformer.attention import cached
from attnprof.workloads.transformer.kernels import Kernels
from attnprof.workloads.transformer.latent import LatentAttention
from attnprof.workloads.transformer.model import TransformerBlock
from attnprof.workloads.transformer.step import Meter, Segment, Step, unmetered


def attention_block(workload: Workload) -> AttentionBlock:
    """What one layer of a workload without a model attends with."""
    latent = None
    if workload.mla is not None:
        assert workload.kv_lora_rank is not None and workload.rope_head_dim is not None
        latent = Latent(kv_rank=workload.kv_lora_rank, q_rank=None, rope_dim=workload.rope_head_dim)
    return AttentionBlock(
        num_q_heads=workload.num_q_heads,
        num_kv_heads=workload.num_kv_heads,
        head_dim=workload.head_dim,
        v_head_dim=workload.value_dim,
        scale=workload.head_dim**-0.5,
        variant=workload.variant,
        window_len=workload.window_len,
        softcap=workload.softcap,
        sinks=workload.sink_logits,
        rope=_rope(workload) if latent is not None else None,
        latent=latent,
    )


def _rope(workload: Workload) -> Rope | None:
    """The rotation of a latent attention, which has a part of each head for it."""
    if POSITIONS[workload.position].acts != "rotation":
        return None
    return rope_named(workload.position, workload.rope_head_dim or workload.head_dim)


def ffn_of(workload: Workload) -> Ffn | Experts:
    """The feed-forward part of a block without a model: plain with GELU, gated with SiLU, or
    experts that are gated."""
    assert workload.ffn_dim is not None
    gated = workload.ffn != "plain"
    ffn = Ffn(width=workload.ffn_dim, gated=gated, activation="silu" if gated else "gelu")
    if workload.ffn != "moe":
        return ffn
    assert workload.num_experts is not None and workload.num_active_experts is not None
    return Experts(
        expert=ffn,
        num_experts=workload.num_experts,
        num_active=workload.num_active_experts,
        normalised=True,
    )


class PlainKernels(Kernels):
    """The kernels of a workload without a model, whose layers are all alike.

    What a position scheme adds to all scores alike is prepared with the kernel and held between
    calls; of one new token, whose row changes with every length, it is made in the call.
    """

    def __init__(
        self, workload: Workload, device: torch.device, kind: str | None, position: Position
    ) -> None:
        super().__init__(workload, device, kind)
        self.position = position
        self._calls: dict[tuple[AttentionBlock, int, int, int], Workload] = {}

    def of_lengths(
        self, block: AttentionBlock, batch_size: int, q_len: int, kv_len: int
    ) -> Workload:
        """What :meth:`op_workload` gives, made once."""
        key = (block, batch_size, q_len, kv_len)
        found = self._calls.get(key)
        if found is None:
            self._calls = {old: one for old, one in self._calls.items() if old[:3] != key[:3]}
            found = self._calls[key] = self.op_workload(*key)
        return found

    def prepared(
        self, block: AttentionBlock, batch_size: int, q_len: int, kv_len: int
    ) -> Attention:
        key = (block, batch_size, q_len, kv_len)
        attention = self._prepared.get(key)
        if attention is None:
            of_op = self.op_workload(block, batch_size, q_len, kv_len)
            bias = None if q_len == 1 else self.constant_bias(of_op)
            attention = prepare(of_op, self.device, self.kind, scale=block.scale, bias=bias)
            if q_len == 1:
                self._forget_shorter(block, batch_size, kv_len)
            self._prepared[key] = attention
        return attention

    def _forget_shorter(self, of_one: AttentionBlock, batch_size: int, kv_len: int) -> None:
        """A growing cache comes by every length once."""
        for key in list(self._prepared):
            if key[:3] == (of_one, batch_size, 1) and key[3] < kv_len:
                del self._prepared[key]

    def op_workload(
        self, block: AttentionBlock, batch_size: int, q_len: int, kv_len: int
    ) -> Workload:
        """Attention alone as the layer computes it, with so many queries and keys."""
        phase = "prefill" if q_len == kv_len else "decode" if q_len == 1 else "chunked-prefill"
        workload = self.workload
        is_cross = workload.attention == "cross"
        sizes = {
            name: min(size, kv_len)
            for name in PARAMETERS
            if (size := getattr(workload, name)) is not None
        }
        return Workload(
            backend=workload.backend, phase="prefill" if is_cross else phase, dtype=workload.dtype,
            batch_size=batch_size, q_len=q_len, kv_len=kv_len, num_q_heads=block.num_q_heads,
            num_kv_heads=block.num_kv_heads, head_dim=block.head_dim,
            v_head_dim=None if block.v_head_dim == block.head_dim else block.v_head_dim,
            variant=workload.variant, **sizes, min_len=workload.min_len,
            attention=workload.attention, position=self._added(),
            kv_cache="cross" if is_cross else "none" if phase == "prefill" else "static",
            softcap=block.softcap, sink_logits=block.sinks,
        )  # fmt: skip

    def _added(self) -> str:
        """The position scheme, where it changes scores and so what a kernel is given."""
        name = self.workload.position
        return name if POSITIONS[name].acts == "scores" else "none"

    def constant_bias(self, of_op: Workload) -> torch.Tensor | None:
        """What the position adds to all scores of a call, whatever its queries are."""
        q_len, given = of_op.q_len, num_given(of_op)
        first_q, first_kv = of_op.kv_len - q_len, of_op.kv_len - given
        return self.position.constant_bias(first_q, q_len, first_kv, given)


class PlainAttention(nn.Module):
    """Attention of one layer: queries, keys and values come out of one matrix product.

    A cross-attention makes its queries of the rows and its keys and values of a source: once, for
    a cache, or in a training step every time.
    """

    def __init__(self, block: AttentionBlock, hidden_size: int, index: int, *, cross: bool) -> None:
        super().__init__()
        self.block, self.index = block, index
        self.widths = [
            block.num_q_heads * block.head_dim,
            block.num_kv_heads * block.head_dim,
            block.num_kv_heads * block.v_head_dim,
        ]
        self.kv: nn.Linear | None = None
        if cross:
            self.q = nn.Linear(hidden_size, self.widths[0], bias=False)
            self.kv = nn.Linear(hidden_size, sum(self.widths[1:]), bias=False)
        else:
            self.qkv = nn.Linear(hidden_size, sum(self.widths), bias=False)
        self.out = nn.Linear(block.num_q_heads * block.v_head_dim, hidden_size, bias=False)
        self.sinks = nn.Parameter(torch.empty(block.num_q_heads)) if block.sinks else None

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Attention over the rows ``[rows, hidden_size]`` of a step."""
        with step.part("projection"):
            made = self.q(x) if self.kv is not None else self.qkv(x)
        seen = [self._attend(made[rows], step, number) for number, rows in enumerate(step.rows)]
        together = seen[0] if len(seen) == 1 else torch.cat(seen)
        with step.part("projection"):
            out: torch.Tensor = self.out(together)
        return out

    def _attend(self, made: torch.Tensor, step: Step, number: int) -> torch.Tensor:
        segment = step.segments[number]
        if self.kv is not None:
            q = self._heads(made, segment.batch_size, self.block.head_dim)
            k, v = self._source(segment, step)
        else:
            q, k, v = self._own(made, segment, step)
        out = self._kernel(q, k, v, segment, step)
        return out.transpose(1, 2).reshape(segment.num_rows, -1)

    def _own(
        self, made: torch.Tensor, segment: Segment, step: Step
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries of the new tokens, keys and values of all that they may see."""
        block, batch_size = self.block, segment.batch_size
        parts = torch.split(made, self.widths, dim=-1)
        dims = (block.head_dim, block.head_dim, block.v_head_dim)
        q, k, v = (
            self._heads(part, batch_size, dim) for part, dim in zip(parts, dims, strict=True)
        )
        with step.part("position"):
            position = _kernels(step).position
            q = position.rotate(q, segment.first_pos)
            k = position.rotate(k, segment.first_pos)
        if segment.caches is not None:
            with step.part("cache"):
                k, v = cached(segment, segment.caches[self.index], k, v, keeps=step.keeps)
        return q, k, v

    def _source(self, segment: Segment, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        assert segment.caches is not None
        held = segment.caches[self.index]
        if isinstance(held, torch.Tensor):
            with step.part("projection"):
                return self.keys_of_source(held)
        with step.part("cache"):
            k, v = held.held()
        return k, v

    def keys_of_source(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[batch, num_kv_heads, tokens, width]`` of the source's states
        ``[batch, tokens, hidden_size]``."""
        assert self.kv is not None
        k, v = torch.split(self.kv(source), self.widths[1:], dim=-1)
        block, batch_size = self.block, source.shape[0]
        return (
            self._heads(k, batch_size, block.head_dim),
            self._heads(v, batch_size, block.v_head_dim),
        )

    @staticmethod
    def _heads(rows: torch.Tensor, batch_size: int, width: int) -> torch.Tensor:
        by_token = rows.reshape(batch_size, -1, rows.shape[-1] // width, width)
        return by_token.transpose(1, 2)

    def _kernel(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segment: Segment, step: Step
    ) -> torch.Tensor:
        """The kernel's output ``[batch, num_q_heads, num_tokens, v_head_dim]``.

        It is given the keys from the first that any new token sees.
        """
        kernels, q_len = _kernels(step), segment.num_tokens
        kv_len = k.shape[2] if self.kv is not None else segment.kv_len
        kernel = kernels.prepared(self.block, segment.batch_size, q_len, kv_len)
        of_op = kernels.of_lengths(self.block, segment.batch_size, q_len, kv_len)
        given = num_given(of_op)
        k, v = k[:, :, -given:], v[:, :, -given:]
        more: dict[str, torch.Tensor] = {}
        with step.part("position"):
            bias = kernels.constant_bias(of_op) if q_len == 1 else None
            if bias is None:
                bias = kernels.position.query_bias(q, segment.first_pos, kv_len - given, given)
        if bias is not None:
            more["bias"] = bias
        if self.sinks is not None:
            more["sinks"] = self.sinks
        with step.part("attention"):
            return kernel.attend(q, k, v, **more)


def _kernels(step: Step) -> PlainKernels:
    assert isinstance(step.kernels, PlainKernels)
    return step.kernels


class PlainStack(nn.Module):
    """Layers or blocks one after another, each with its own weights."""

    def __init__(self, workload: Workload, kernels: PlainKernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.hidden_size = workload.hidden_size
        self.meter: Meter = unmetered
        self.checkpointing = workload.checkpointing
        self.blocks = nn.ModuleList(
            self._layer(workload, index) for index in range(workload.num_layers)
        )
        self._rotaries: dict[Rope, Rotary] = {}

    def _layer(self, workload: Workload, index: int) -> nn.Module:
        block, hidden_size = attention_block(workload), workload.hidden_size
        attention: nn.Module
        if block.latent is not None:
            attention = LatentAttention(block, hidden_size, index)
        else:
            cross = workload.attention == "cross"
            attention = PlainAttention(block, hidden_size, index, cross=cross)
        if workload.scope == "layer":
            return attention
        whole = TransformerBlock(
            Block(attention=block, ffn=ffn_of(workload), norm=Norm()), hidden_size, index
        )
        whole.attention = attention  # type: ignore[assignment]  # called alike
        return whole

    def attention_of(self, index: int) -> PlainAttention | LatentAttention:
        """The attention of a layer, whatever is around it."""
        layer = self.blocks[index]
        found = layer.attention if isinstance(layer, TransformerBlock) else layer
        assert isinstance(found, PlainAttention | LatentAttention)
        return found

    def keys_of_source(self, index: int, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a cross-attention, what a layer attends to; see :class:`PlainAttention`."""
        attention = self.attention_of(index)
        assert isinstance(attention, PlainAttention)
        return attention.keys_of_source(source)

    def pinned(self) -> AbstractContextManager[object]:
        """The pinned kernel, entered once around many calls."""
        return self.kernels.pinned()

    def step(self, segments: Sequence[Segment], *, keeps: bool = True) -> Step:
        """What one forward pass over ``segments`` shares."""
        return Step(segments, self.kernels, self._rotary, keeps=keeps, meter=self.meter)

    def _rotary(self, rope: Rope) -> Rotary:
        if rope not in self._rotaries:
            workload = self.kernels.workload
            longest = max(workload.kv_len, workload.prefill_len or 0)
            dtype = torch_dtype(workload.dtype)
            self._rotaries[rope] = Rotary(rope, longest, self.kernels.device, dtype)
        return self._rotaries[rope]

    def run(
        self, given: Sequence[torch.Tensor], step: Step, *, last_only: bool = False
    ) -> torch.Tensor:
        """Rows ``[rows, hidden_size]`` of the states ``[batch, n, hidden_size]`` of each segment.

        All rows are made: without a head there is nothing that the last alone is wanted for.
        """
        return self.through(self.embedded(given, step), step)

    def embedded(self, given: Sequence[torch.Tensor], step: Step) -> torch.Tensor:
        """The states as rows, absolute positions added."""
        with step.part("position"):
            placed = [
                _kernels(step).position.embed(x, segment.first_pos)
                for x, segment in zip(given, step.segments, strict=True)
            ]
        flat = [x.flatten(0, 1) for x in placed]
        return flat[0] if len(flat) == 1 else torch.cat(flat)

    def through(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """The rows after all layers."""
        for layer in self.blocks:
            if self.checkpointing:
                x = checkpoint(partial(layer, step=step), x, use_reentrant=False)
            else:
                x = layer(x, step)
        return x
