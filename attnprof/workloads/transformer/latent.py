"""Multi-head latent attention of one layer: expanded into heads, or absorbed into the queries."""

from dataclasses import replace

import torch
from torch import nn

from attnprof.models.architecture import AttentionBlock, Norm
from attnprof.workloads.positions.rotary import turned
from attnprof.workloads.transformer.attention import attended, cached
from attnprof.workloads.transformer.norms import RmsNorm
from attnprof.workloads.transformer.step import Segment, Step

LATENT_NORM = Norm(eps=1e-6)  # whatever the epsilon of the layers' norms


def absorbed_block(block: AttentionBlock) -> AttentionBlock:
    """The same attention over latents: all heads share one key, whose first part is the value."""
    latent = block.latent
    assert latent is not None
    return replace(
        block,
        num_kv_heads=1,
        head_dim=latent.kv_rank + latent.rope_dim,
        v_head_dim=latent.kv_rank,
    )


class LatentAttention(nn.Module):
    """Keys and values of all heads come out of one narrow latent and a rotated key they share.

    Over a latent cache, tokens that follow others are attended to in the absorbed form: what
    would make keys of latents is multiplied into the queries, what would make values of them into
    the output, and the cache is read as it lies. Everything else is expanded into heads.

    Source:
        DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, sections 2.1.2 and 2.1.3.
    """

    def __init__(self, block: AttentionBlock, hidden_size: int, index: int) -> None:
        super().__init__()
        latent = block.latent
        assert latent is not None
        self.block, self.latent, self.index = block, latent, index
        self.absorbed = absorbed_block(block)
        self.nope_dim = block.head_dim - latent.rope_dim
        num_heads, value_dim = block.num_q_heads, block.v_head_dim
        q_width = num_heads * block.head_dim
        if latent.q_rank is None:
            self.q = nn.Linear(hidden_size, q_width, bias=False)
        else:
            self.q_down = nn.Linear(hidden_size, latent.q_rank, bias=latent.bias)
            self.q_norm = RmsNorm(latent.q_rank, LATENT_NORM)
            self.q = nn.Linear(latent.q_rank, q_width, bias=False)
        self.kv_down = nn.Linear(hidden_size, latent.kv_rank + latent.rope_dim, bias=latent.bias)
        self.kv_norm = RmsNorm(latent.kv_rank, LATENT_NORM)
        self.kv_up = nn.Linear(latent.kv_rank, num_heads * (self.nope_dim + value_dim), bias=False)
        self.out = nn.Linear(num_heads * value_dim, hidden_size, bias=block.o_bias)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Attention over the rows ``[rows, hidden_size]`` of a step."""
        with step.part("projection"):
            narrow = x
            if self.latent.q_rank is not None:
                narrow = self.q_norm(self.q_down(x))
            queries, latents = self.q(narrow), self.kv_down(x)
        seen = [
            self._attend(queries[rows], latents[rows], step, number)
            for number, rows in enumerate(step.rows)
        ]
        together = seen[0] if len(seen) == 1 else torch.cat(seen)
        with step.part("projection"):
            out: torch.Tensor = self.out(together)
        return out

    def _attend(
        self, queries: torch.Tensor, latents: torch.Tensor, step: Step, number: int
    ) -> torch.Tensor:
        segment, block, rope_dim = step.segments[number], self.block, self.latent.rope_dim
        shape = (segment.batch_size, segment.num_tokens)
        heads = queries.view(*shape, -1, block.head_dim)
        q_nope, q_rope = torch.split(heads, [self.nope_dim, rope_dim], dim=-1)
        shared = latents.view(*shape, 1, -1)
        latent, k_rope = torch.split(shared, [self.latent.kv_rank, rope_dim], dim=-1)
        with step.part("norm"):
            latent = self.kv_norm(latent)
        if block.rope is not None:
            with step.part("position"):
                cos, sin = step.angles(block.rope)[number]
                q_rope, k_rope = turned(q_rope, cos, sin), turned(k_rope, cos, sin)
        cache = None if segment.caches is None else segment.caches[self.index]
        if cache is None or cache.shape.latent_rank is None:
            return self._expanded(segment, step, q_nope, q_rope, latent, k_rope)
        shared = torch.cat((latent, k_rope), dim=-1).transpose(1, 2)
        with step.part("cache"):
            held = cache.append(shared) if step.keeps else cache.extended(shared)
        if segment.first_pos == 0:
            without_cache = replace(segment, caches=None)
            return self._expanded(without_cache, step, q_nope, q_rope, latent, k_rope)
        return self._absorbed(segment, step, q_nope, q_rope, *held)

    def _expanded(
        self,
        segment: Segment,
        step: Step,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        latent: torch.Tensor,
        k_rope: torch.Tensor,
    ) -> torch.Tensor:
        """Keys and values made of the latents, head by head, and attended to as in any layer."""
        heads = (*latent.shape[:2], self.block.num_q_heads)
        with step.part("projection"):
            up = self.kv_up(latent).view(*heads, -1)
            k_nope, v = torch.split(up, [self.nope_dim, self.block.v_head_dim], dim=-1)
            q = torch.cat((q_nope, q_rope), dim=-1).transpose(1, 2)
            k = torch.cat((k_nope, k_rope.expand(*heads, -1)), dim=-1).transpose(1, 2)
            v = v.transpose(1, 2)
        if segment.caches is not None:
            with step.part("cache"):
                k, v = cached(segment, segment.caches[self.index], k, v, keeps=step.keeps)
        out = attended(self.block, segment, step, q, k, v)
        return out.transpose(1, 2).reshape(segment.num_rows, -1)

    def _absorbed(
        self,
        segment: Segment,
        step: Step,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        keys: torch.Tensor,
        latents: torch.Tensor,
    ) -> torch.Tensor:
        """Queries taken to the latents, and what was seen of these to values."""
        num_heads, rank = self.block.num_q_heads, self.latent.kv_rank
        up = self.kv_up.weight.view(num_heads, -1, rank)
        to_keys, to_values = up[:, : self.nope_dim], up[:, self.nope_dim :]
        with step.part("projection"):
            by_head = q_nope.reshape(segment.num_rows, num_heads, -1).transpose(0, 1) @ to_keys
            q_latent = by_head.transpose(0, 1).view(*q_nope.shape[:3], rank)
            q = torch.cat((q_latent, q_rope), dim=-1).transpose(1, 2)
        out = attended(self.absorbed, segment, step, q, keys, latents)
        with step.part("projection"):
            seen = out.transpose(1, 2).reshape(segment.num_rows, num_heads, rank)
            values = seen.transpose(0, 1) @ to_values.transpose(1, 2)
            return values.transpose(0, 1).reshape(segment.num_rows, -1)
