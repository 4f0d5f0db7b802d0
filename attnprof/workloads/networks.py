"""A workload of scope layer, block or model -> its modules with their weights, and their caches."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from attnprof.models.architecture import Architecture, AttentionBlock
from attnprof.models.build_architecture import architecture_of
from attnprof.workload import Workload
from attnprof.workloads.kv_caches import CacheShape, KvCache, cache_of_shape, cache_shape
from attnprof.workloads.layer import PlainKernels, PlainStack
from attnprof.workloads.operation import Noise
from attnprof.workloads.positions import position_for
from attnprof.workloads.precision import quantize_weights, torch_dtype
from attnprof.workloads.transformer.kernels import Kernels
from attnprof.workloads.transformer.latent import absorbed_block
from attnprof.workloads.transformer.model import Transformer, build_transformer
from attnprof.workloads.transformer.step import Segment, Step
from attnprof.workloads.transformer.weights import fill_with_noise

_CACHE_SEED = 104_729  # so that cached keys are other noise than the weights of the same seed


class ModelBlocks(Transformer):
    """The blocks of a model without what is around them: states in, states out."""

    def __init__(self, architecture: Architecture, kernels: Kernels) -> None:
        alone = replace(
            architecture, vocab_size=1, num_positions=None, final_norm=None, tied_head=False,
            num_token_types=0, embedding_norm=None, has_head=False, head_transform=None,
            encoder=None,
        )  # fmt: skip
        super().__init__(alone, kernels)
        del self.embedding

    def run(
        self, tokens: Sequence[torch.Tensor], step: Step, *, last_only: bool = False
    ) -> torch.Tensor:
        """Rows ``[rows, hidden_size]``, of states ``[batch, n, hidden_size]`` of each segment."""
        return self.through(self.embedded(tokens, step), step)

    def embedded(self, tokens: Sequence[torch.Tensor], step: Step) -> torch.Tensor:
        """The states as they are given, one row a token."""
        flat = [states.flatten(0, 1) for states in tokens]
        x = flat[0] if len(flat) == 1 else torch.cat(flat)
        with step.part("position"):
            self.tell_biases(x, step)
        return x


Network = PlainStack | Transformer


def build_network(
    workload: Workload, device: torch.device, seed: int, kind: str | None = None
) -> Network:
    """The modules of ``workload`` with seeded random weights, in its ``weight_dtype``.

    Raises:
        UsageError: No such model, or one that cannot be built.
        UnsupportedError: The weights cannot be stored so.
    """
    network: Network
    if workload.scope == "model":
        network = build_transformer(architecture_for(workload), workload, device, seed, kind)
    else:
        with torch.device("meta"):
            network = _without_weights(workload, device, seed, kind)
        network.to(torch_dtype(workload.dtype)).to_empty(device=device)
        fill_with_noise(network, seed)
        network.eval()
    network.checkpointing = workload.checkpointing
    network.requires_grad_(workload.phase == "train")
    if workload.weight_dtype is not None:
        quantize_weights(network.blocks, workload.weight_dtype)
        encoder = None if isinstance(network, PlainStack) else network.encoder
        if encoder is not None:
            quantize_weights(encoder.blocks, workload.weight_dtype)
    return network


def architecture_for(workload: Workload) -> Architecture:
    """The first ``num_layers`` of the workload's model."""
    assert workload.model is not None
    return architecture_of(workload.model).first(workload.num_layers)


def _without_weights(
    workload: Workload, device: torch.device, seed: int, kind: str | None
) -> Network:
    if workload.model is not None:
        return ModelBlocks(architecture_for(workload), Kernels(workload, device, kind))
    with torch.device(device):
        position = position_for(workload, device, torch_dtype(workload.dtype), seed)
    return PlainStack(workload, PlainKernels(workload, device, kind, position))


def attention_blocks(network: Network) -> list[AttentionBlock]:
    """What each layer attends with, in order."""
    if isinstance(network, PlainStack):
        return [network.attention_of(index).block for index in range(len(network.blocks))]
    return [block.attention for block in network.architecture.blocks]


def has_cross(network: Network) -> bool:
    """Whether a model's layers look at a source as well."""
    return not isinstance(network, PlainStack) and any(
        block.cross is not None for block in network.architecture.blocks
    )


def position_bytes(network: Network) -> int:
    """Of the tables of positions that are held between calls, and are no weights."""
    held = sum(rotary.table_bytes for rotary in network._rotaries.values())
    if isinstance(network, PlainStack):
        held += network.kernels.position.table_bytes
    return held


def output_width(network: Network) -> int:
    """Elements of a row of the output: logits of a head, else a state."""
    if isinstance(network, PlainStack):
        return network.hidden_size
    found = network.architecture
    return found.hidden_size if network.head is None else found.vocab_size


def state_width(network: Network) -> int:
    """Elements of a state between layers."""
    if isinstance(network, PlainStack):
        return network.hidden_size
    return network.architecture.hidden_size


def prepare_kernels(network: Network, segments: Sequence[Segment]) -> None:
    """Every kernel that a step over ``segments`` needs, before it is called.

    Raises:
        UnsupportedError: The backend lacks what a layer needs.
    """
    kernels = network.kernels
    workload = kernels.workload
    crosses = workload.attention == "cross" and workload.model is None
    for index, block in enumerate(attention_blocks(network)):
        for segment in segments:
            cache = None if segment.caches is None else segment.caches[index]
            reads_latent = isinstance(cache, KvCache) and cache.shape.latent_rank is not None
            seen = absorbed_block(block) if reads_latent and segment.first_pos else block
            kv_len = workload.kv_len if crosses else segment.kv_len
            lengths = (segment.batch_size, segment.num_tokens, kv_len)
            if segment.min_len is None:
                kernels.prepared(seen, *lengths)
            else:
                kernels.padded(seen, *lengths, segment.min_len)
    if has_cross(network) and not isinstance(network, PlainStack):
        _prepare_for_source(network, segments[0])


def _prepare_for_source(network: Transformer, segment: Segment) -> None:
    """The kernels that encode a source, and those that look at it."""
    workload, kernels, batch_size = network.kernels.workload, network.kernels, segment.batch_size
    length = workload.source_len or workload.kv_len
    encoder = network.architecture.encoder
    for block in encoder.blocks if encoder is not None else ():
        kernels.prepared(block.attention, batch_size, length, length)
    for block in network.architecture.blocks:
        if block.cross is not None:
            kernels.prepared(block.cross, batch_size, segment.num_tokens, length)


def layer_cache_shape(workload: Workload, block: AttentionBlock) -> CacheShape:
    """The cache of one layer: rolling where it has a window, latent where it has a latent."""
    kind = workload.kv_cache
    if kind == "rolling" and block.window_len is None:
        kind = "contiguous"
    rank = None
    if kind == "latent":
        rank = block.latent.kv_rank if block.latent is not None else None
        kind = "latent" if rank is not None else "static"
    width = rank + block.latent.rope_dim if rank is not None and block.latent else block.head_dim
    return replace(
        cache_shape(replace(workload, kv_cache="static")), kind=kind, latent_rank=rank,
        num_heads=block.num_kv_heads if rank is None else 1, key_dim=width,
        value_dim=block.v_head_dim if rank is None else 0, window_len=block.window_len,
    )  # fmt: skip


class Held:
    """The keys and values of the tokens that one layer's cache begins with: seeded noise, made
    again whenever it is asked for, so that a reference need not read the cache."""

    def __init__(self, shape: CacheShape, length: int, seed: int, device: torch.device) -> None:
        self.shape, self.length = shape, length
        self._seed, self._device = seed, device

    def tokens(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``[batch, num_heads, length, width]`` in the dtype of the arithmetic; of a latent one."""
        noise, shape = Noise(self._seed + _CACHE_SEED, self._device), self.shape
        dtype, leading = torch_dtype(shape.dtype), (shape.batch_size, shape.num_heads, self.length)
        keys = noise(*leading, shape.key_dim, dtype=dtype)
        return keys, noise(*leading, shape.value_dim, dtype=dtype) if shape.value_dim else None

    def cache(self) -> KvCache:
        """A cache that holds them."""
        cache = cache_of_shape(self.shape, 0, self._empty, self._seed)
        if self.length:
            cache.append(*self.tokens())
        return cache

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch_dtype(self.shape.dtype), device=self._device)


def held_by(
    workload: Workload, network: Network, length: int, seed: int, device: torch.device
) -> list[Held]:
    """What the caches of all layers begin with."""
    return [
        Held(layer_cache_shape(workload, block), length, seed + index, device)
        for index, block in enumerate(attention_blocks(network))
    ]


def held_caches(
    workload: Workload, network: Network, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> list[KvCache]:
    """A cache for each layer that holds these keys and values."""
    made = []
    for block, (k, v) in zip(attention_blocks(network), pairs, strict=True):
        shape = layer_cache_shape(workload, block)
        cache = cache_of_shape(shape, 0, k.new_zeros, 0)
        cache.append(k, v)
        made.append(cache)
    return made


def source_cache(
    workload: Workload, block: AttentionBlock, pair: tuple[torch.Tensor, torch.Tensor]
) -> KvCache:
    """A cache of one layer that holds the keys and values of a source, and is not added to."""
    shape = replace(layer_cache_shape(workload, block), kind="contiguous")
    k, v = pair
    cache = cache_of_shape(shape, 0, k.new_zeros, 0)
    cache.append(k, v)
    return cache
