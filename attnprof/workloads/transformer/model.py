"""Blocks and whole models: embeddings, layers, final norm and head, from an architecture."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from attnprof.models.architecture import Architecture, Block, Experts
from attnprof.rope import Rope
from attnprof.workload import Workload
from attnprof.workloads.kv_caches import KvCache
from attnprof.workloads.positions import Rotary
from attnprof.workloads.precision import torch_dtype
from attnprof.workloads.transformer.attention import SelfAttention
from attnprof.workloads.transformer.cross import CrossAttention, Source, cached_source
from attnprof.workloads.transformer.ffn import ACTIVATIONS, FeedForward, MixtureOfExperts
from attnprof.workloads.transformer.kernels import Kernels
from attnprof.workloads.transformer.latent import LatentAttention
from attnprof.workloads.transformer.norms import new_norm
from attnprof.workloads.transformer.relative import new_relative
from attnprof.workloads.transformer.step import Meter, Segment, Step, unmetered
from attnprof.workloads.transformer.weights import fill_with_noise


class TransformerBlock(nn.Module):
    """One layer over the rows of a step."""

    def __init__(self, block: Block, hidden_size: int, index: int) -> None:
        super().__init__()
        kind = SelfAttention if block.attention.latent is None else LatentAttention
        self.attention = kind(block.attention, hidden_size, index)
        self.cross = None
        if block.cross is not None:
            self.cross = CrossAttention(block.cross, hidden_size, index)
        self.ffn: FeedForward | MixtureOfExperts
        if isinstance(block.ffn, Experts):
            self.ffn = MixtureOfExperts(block.ffn, hidden_size)
        else:
            self.ffn = FeedForward(block.ffn, hidden_size)

        def norms(*placements: str) -> nn.ModuleList | None:
            if block.placement not in placements:
                return None
            count = 2 if block.cross is None else 3  # the attention's, the FFN's, the cross one's
            return nn.ModuleList(new_norm(hidden_size, block.norm) for _ in range(count))

        self.norms_before = norms("pre", "both", "parallel")
        if block.placement == "parallel-one-norm":
            self.norms_before = nn.ModuleList([new_norm(hidden_size, block.norm)])
        self.is_parallel = block.placement.startswith("parallel")
        self.norms_within = norms("both")
        self.norms_after = norms("post")

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """The hidden states ``[rows, hidden_size]`` after this layer."""
        if self.is_parallel:
            return self._in_parallel(x, step)
        x = self._joined(0, x, self.attention(self._normed(0, x, step), step), step)
        if self.cross is not None:
            x = self._joined(2, x, self.cross(self._normed(2, x, step), step), step)
        inner = self._normed(1, x, step)
        with step.part("ffn"):
            inner = self.ffn(inner)
        return self._joined(1, x, inner, step)

    def _in_parallel(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        assert self.norms_before is not None
        first = self._normed(0, x, step)
        second = first if len(self.norms_before) == 1 else self._normed(1, x, step)
        seen = self.attention(first, step)
        with step.part("ffn"):
            inner = self.ffn(second)
        with step.part("norm"):
            together: torch.Tensor = x + seen + inner
        return together

    def _normed(self, number: int, x: torch.Tensor, step: Step) -> torch.Tensor:
        if self.norms_before is None:
            return x
        with step.part("norm"):
            normed: torch.Tensor = self.norms_before[number](x)
        return normed

    def _joined(
        self, number: int, x: torch.Tensor, inner: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """The residual and what a part gave, normed where the layer norms there."""
        with step.part("norm"):
            if self.norms_within is not None:
                inner = self.norms_within[number](inner)
            x = x + inner
            return x if self.norms_after is None else self.norms_after[number](x)


class Transformer(nn.Module):
    """Tokens in, logits out; of an encoder without a head, states.

    An encoder–decoder is its decoder, and encodes a source with an ``encoder`` of its own.
    Its kernels are those of one backend, prepared for each kind of layer and length when they are
    first needed. Enter :meth:`pinned` around calls.
    """

    def __init__(self, architecture: Architecture, kernels: Kernels) -> None:
        super().__init__()
        self.architecture, self.kernels = architecture, kernels
        self.meter: Meter = unmetered
        self.checkpointing = False
        hidden_size, vocab_size = architecture.hidden_size, architecture.vocab_size
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        # Rounded to the dtype of the rows, as Gemma does.
        dtype = torch_dtype(kernels.workload.dtype)
        scale = torch.tensor(architecture.embedding_scale, dtype=dtype, device="cpu")
        self.embedding_scale = scale.item()
        self.positions = None
        if architecture.num_positions is not None:
            self.positions = nn.Embedding(architecture.num_positions, hidden_size)
        self.token_types = None
        if architecture.num_token_types:
            self.token_types = nn.Embedding(architecture.num_token_types, hidden_size)
        self.embedding_norm = None
        if architecture.embedding_norm is not None:
            self.embedding_norm = new_norm(hidden_size, architecture.embedding_norm)
        self.relative = new_relative(architecture.blocks[0].attention)
        self.blocks = nn.ModuleList(
            TransformerBlock(block, hidden_size, index)
            for index, block in enumerate(architecture.blocks)
        )
        self.final_norm = None
        if architecture.final_norm is not None:
            self.final_norm = new_norm(hidden_size, architecture.final_norm)
        self.head_transform = self.head_norm = None
        if architecture.head_transform is not None:
            self.head_transform = nn.Linear(hidden_size, hidden_size)
            self.head_norm = new_norm(hidden_size, architecture.head_transform.norm)
        self.head = None
        if architecture.has_head:
            self.head = nn.Linear(hidden_size, vocab_size, bias=architecture.head_bias)
        self.encoder: Transformer | None = None
        if architecture.encoder is not None:
            self.encoder = Transformer(architecture.encoder, kernels)
            self.encoder.embedding = self.embedding
        self.tie()
        self._rotaries: dict[Rope, Rotary] = {}

    def tie(self) -> None:
        """Make the head's matrix the embedding, where the architecture says so."""
        if self.head is not None and self.architecture.tied_head:
            self.head.weight = self.embedding.weight

    def pinned(self) -> AbstractContextManager[object]:
        """The pinned kernel, entered once around many calls."""
        return self.kernels.pinned()

    def step(self, segments: Sequence[Segment], *, keeps: bool = True) -> Step:
        """What one forward pass over ``segments`` shares."""
        return Step(segments, self.kernels, self._rotary, keeps=keeps, meter=self.meter)

    def _rotary(self, rope: Rope) -> Rotary:
        rotary = self._rotaries.get(rope)
        if rotary is None:
            workload = self.kernels.workload
            dtype = torch_dtype(workload.dtype)
            rotary = Rotary(rope, workload.kv_len, self.kernels.device, dtype)
            self._rotaries[rope] = rotary
        return rotary

    def forward(
        self,
        tokens: torch.Tensor,
        caches: Sequence[KvCache] | None = None,
        first_pos: int = 0,
        *,
        keeps: bool = True,
        last_only: bool = False,
        source: Source | None = None,
        min_len: int | None = None,
        token_types: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits ``[batch, n, vocab_size]`` of ``tokens [batch, n]``, the first at ``first_pos``.

        Args:
            caches: One a layer, that hold the ``first_pos`` tokens before.
            keeps: Whether the caches keep these tokens.
            last_only: Give the logits of each sequence's last token alone, as an engine does.
            source: What a decoder's cross-attention looks at, from :meth:`encode`.
            min_len: Length of the first sequence of a padded batch; see :class:`Segment`.
            token_types: ``[batch, n]``, of an encoder that tells sentences apart.
        """
        batch_size, num_tokens = tokens.shape
        segment = Segment(
            batch_size=batch_size, num_tokens=num_tokens, first_pos=first_pos, caches=caches,
            source=source, min_len=min_len, token_types=token_types,
        )  # fmt: skip
        logits = self.run([tokens], self.step([segment], keeps=keeps), last_only=last_only)
        return logits.view(batch_size, -1, logits.shape[-1])

    def encode(self, tokens: torch.Tensor, min_len: int | None = None) -> Source:
        """What the encoder makes of the tokens ``[batch, source_len]`` of a source.

        Args:
            min_len: As in :meth:`forward`.
        """
        assert self.encoder is not None
        self.encoder.meter, self.encoder.checkpointing = self.meter, self.checkpointing
        return Source(states=self.encoder(tokens, min_len=min_len), min_len=min_len)

    def cached_source(self, source: Source, stored: str | None = None) -> Source:
        """``source`` with the keys and values of every layer, made once.

        Args:
            stored: Dtype of an element in the caches, where it is not the arithmetic's.
        """
        attentions = [
            module for module in self.blocks.modules() if isinstance(module, CrossAttention)
        ]
        return cached_source(attentions, source, self.kernels.workload.dtype, stored)

    def run(
        self, tokens: Sequence[torch.Tensor], step: Step, *, last_only: bool = False
    ) -> torch.Tensor:
        """Logits ``[rows, vocab_size]`` of the tokens ``[batch, n]`` of each segment of a step."""
        x = self.through(self.embedded(tokens, step), step)
        if last_only:
            x = last_rows(x, step)
        return self.logits(x, step)

    def through(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """The rows ``[rows, hidden_size]`` after all layers."""
        for block in self.blocks:
            if self.checkpointing:
                x = checkpoint(partial(block, step=step), x, use_reentrant=False)
            else:
                x = block(x, step)
        return x

    def embedded(self, tokens: Sequence[torch.Tensor], step: Step) -> torch.Tensor:
        """What the first layer is given, ``[rows, hidden_size]``."""
        with step.part("embedding"):
            flat = [ids.reshape(-1) for ids in tokens]
            x: torch.Tensor = self.embedding(flat[0] if len(flat) == 1 else torch.cat(flat))
            if self.embedding_scale != 1.0:
                x = x * self.embedding_scale
            if self.token_types is not None:
                x = x + torch.cat([self._types(segment) for segment in step.segments])
        with step.part("position"):
            if self.positions is not None:
                x = x + torch.cat([self._learned(segment) for segment in step.segments])
            self.tell_biases(x, step)
        if self.embedding_norm is None:
            return x
        with step.part("norm"):
            normed: torch.Tensor = self.embedding_norm(x)
        return normed

    def tell_biases(self, x: torch.Tensor, step: Step) -> None:
        """Let a step know what is added to the scores of each of its segments, if anything is.

        Args:
            x: Hidden states, of whose dtype it is.
        """
        if self.relative is not None:
            step.biases = [self.relative(segment, x) for segment in step.segments]

    def _types(self, segment: Segment) -> torch.Tensor:
        assert self.token_types is not None
        if segment.token_types is None:
            return self.token_types.weight[:1].expand(segment.num_rows, -1)
        types: torch.Tensor = self.token_types(segment.token_types.reshape(-1))
        return types

    def _learned(self, segment: Segment) -> torch.Tensor:
        assert self.positions is not None
        first = self.architecture.first_position + segment.first_pos
        rows = self.positions.weight[first : first + segment.num_tokens]
        return rows.repeat(segment.batch_size, 1)

    def logits(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Logits of rows that all layers have passed; without a head, the states themselves."""
        if self.final_norm is not None:
            with step.part("norm"):
                x = self.final_norm(x)
        if self.head is None:
            return x
        architecture = self.architecture
        with step.part("head"):
            if self.head_transform is not None and self.head_norm is not None:
                assert architecture.head_transform is not None
                activation = ACTIVATIONS[architecture.head_transform.activation]
                x = self.head_norm(activation(self.head_transform(x)))
            if architecture.head_scale != 1.0:
                x = x * architecture.head_scale
            logits: torch.Tensor = self.head(x)
            cap = architecture.logit_softcap
            return logits if cap is None else cap * torch.tanh(logits / cap)


def last_rows(x: torch.Tensor, step: Step) -> torch.Tensor:
    """The rows of each sequence's last token."""
    last = [
        x[rows].view(segment.batch_size, segment.num_tokens, -1)[:, -1]
        for segment, rows in zip(step.segments, step.rows, strict=True)
    ]
    return last[0] if len(last) == 1 else torch.cat(last)


def build_transformer(
    architecture: Architecture,
    workload: Workload,
    device: torch.device,
    seed: int = 0,
    kind: str | None = None,
) -> Transformer:
    """The model with seeded random weights in the workload's dtype.

    Args:
        workload: Names the backend and the dtype; lengths are those of each call.
        kind: Of the device, where it is not torch's name for it.
    """
    with torch.device("meta"):
        model = Transformer(architecture, Kernels(workload, device, kind))
    model = model.to(torch_dtype(workload.dtype)).to_empty(device=device)
    model.tie()
    fill_with_noise(model, seed)
    return model.eval()
