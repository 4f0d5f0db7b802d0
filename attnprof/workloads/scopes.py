"""Scopes layer, block and model: attention with what is around it, over steps of real sequences."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnprof.backends import unsupported_reason
from attnprof.errors import UnsupportedError
from attnprof.measured import Check, Part
from attnprof.workload import GROWING, Workload
from attnprof.workloads.breakdown import parts_of
from attnprof.workloads.compared import held_against_twin
from attnprof.workloads.growth import CacheBytes, bytes_of_caches
from attnprof.workloads.layer import PlainStack
from attnprof.workloads.networks import (
    Held,
    Network,
    attention_blocks,
    build_network,
    has_cross,
    held_by,
    output_width,
    position_bytes,
    prepare_kernels,
    source_cache,
    state_width,
)
from attnprof.workloads.operation import Noise, Operation, Timed
from attnprof.workloads.precision import held_weight_bytes, torch_dtype
from attnprof.workloads.transformer.cross import Source
from attnprof.workloads.transformer.step import Segment, Step

_INPUT_SEED = 15_485_863  # so that inputs are other noise than the weights of the same seed


@dataclass
class StepInputs:
    """What a call reads: weights, caches, and tokens, or states where there is no embedding."""

    network: Network
    given: list[torch.Tensor]  # of each segment
    segments: list[Segment]
    gradient: torch.Tensor | None = None  # of the output, which a train step sends back
    source: torch.Tensor | None = None  # tokens or states that each call reads anew


class ScopeOperation(Operation):
    """A stack of layers, of blocks, or a model.

    A growing workload is built as the step at its end. A decode, chunk or verify adds its tokens
    to caches that hold noise for all tokens before; a call does not keep what it adds, so that it
    can be made again. A train step is a call forward and, from a gradient of noise at its output,
    one backward to every weight and input.
    """

    inputs: StepInputs

    def __init__(
        self, workload: Workload, device: torch.device, seed: int, kind: str | None = None
    ) -> None:
        if workload.phase in GROWING:
            workload = workload.step(workload.kv_len)
        self._kind = kind
        self.held: list[Held] = []
        self.source: torch.Tensor | None = None  # of cross-attention without a model
        super().__init__(workload, device, seed, kind)

    def prepare(self, kind: str | None) -> None:
        """Whatever is known not to run is refused before any weight is made."""
        reason = unsupported_reason(self.workload, kind or self.device.type)
        if reason is not None:
            raise UnsupportedError(reason)

    def allocate(self) -> StepInputs:
        workload = self.workload
        network = build_network(workload, self.device, self.seed, self._kind)
        segments = self._segments(network)
        source = read_by(workload, network, self.seed, self.device)
        prepare_kernels(network, segments)
        kernels = network.kernels
        self.compiles, self.operators = kernels.compiles, kernels.operators
        given = given_to(workload, network, segments, self.seed, self.device)
        gradient = None
        if workload.phase == "train":
            noise = Noise(self.seed + 1, self.device)
            rows, dtype = sum(segment.num_rows for segment in segments), torch_dtype(workload.dtype)
            gradient = noise(rows, output_width(network), dtype=dtype)
        if source is not None and workload.phase not in ("prefill", "train"):
            with torch.inference_mode():
                made = source_of(workload, network, source)
            segments = [replace(one, source=made) for one in segments]
            source = None
        return StepInputs(network, given, segments, gradient, source)

    def _segments(self, network: Network) -> list[Segment]:
        workload = self.workload
        held_len = workload.kv_len - workload.q_len
        caches: list[Any] | None = None
        if workload.attention == "cross" and workload.model is None:
            held_len = 0
            caches = self._of_source(network)
        elif workload.kv_cache != "none":
            self.held = held_by(workload, network, held_len, self.seed, self.device)
            caches = [one.cache() for one in self.held]
        first = Segment(
            batch_size=workload.batch_size, num_tokens=workload.q_len, first_pos=held_len,
            caches=caches, min_len=None if workload.model is None else workload.min_len,
        )  # fmt: skip
        if workload.prefill_len is None:
            return [first]
        return [first, Segment(batch_size=1, num_tokens=workload.prefill_len)]

    def _of_source(self, network: Network) -> list[Any]:
        """Keys and values of the source, made once; in training its states, for each call."""
        assert isinstance(network, PlainStack)
        self.source = states = source_states(self.workload, self.seed, self.device)
        if self.workload.phase == "train":
            states.requires_grad_()
            return [states] * self.workload.num_layers
        made = []
        for index, block in enumerate(attention_blocks(network)):
            with torch.inference_mode():
                pair = network.keys_of_source(index, states)
            made.append(source_cache(self.workload, block, pair))
        return made

    def run(self, inputs: StepInputs) -> torch.Tensor:
        """Rows of the output: of states, or of logits."""
        network = inputs.network
        if inputs.gradient is None:
            step = self.step_of(inputs)
            return network.run(inputs.given, step, last_only=wants_last(self.workload))
        for leaf in (*leaves_of(inputs), *([] if self.source is None else [self.source])):
            leaf.grad = None
        out = network.run(inputs.given, self.step_of(inputs))
        torch.autograd.backward(out, inputs.gradient)
        return out.detach()

    def step_of(self, inputs: StepInputs) -> Step:
        """A pass over the segments; where a source is read, once that has been encoded."""
        segments, network = inputs.segments, inputs.network
        if inputs.source is not None:
            made = source_of(self.workload, network, inputs.source)
            segments = [replace(one, source=made) for one in segments]
        return network.step(segments, keeps=False)

    def compared(self, output: torch.Tensor) -> Check:
        return held_against_twin(self, output)

    def pinned(self) -> AbstractContextManager[object]:
        return self.inputs.network.pinned()

    def parts(self, timed: Timed, limit_s: float) -> tuple[Part, ...]:
        """Of a call forward; none of a train step, whose way back is one walk through them all."""
        if self.inputs.gradient is not None:
            return ()
        return parts_of(self, self.inputs.network, timed, limit_s)

    @property
    def kv_bytes(self) -> int:
        total = 0
        for segment in self.inputs.segments:
            of_source = segment.source.caches if segment.source is not None else None
            total += sum(cache.allocated_bytes for cache in of_source or ())
            new = 0 if self.source is not None else segment.num_tokens
            for cache in segment.caches or ():
                if not isinstance(cache, torch.Tensor):
                    total += cache.allocated_bytes_with(new)
        return total

    @property
    def weight_bytes(self) -> int:
        return held_weight_bytes(self.inputs.network)

    @property
    def mask_bytes(self) -> int:
        return self.inputs.network.kernels.mask_bytes + position_bytes(self.inputs.network)


def wants_last(workload: Workload) -> bool:
    """Whether the next token alone is wanted, and so the logits of each sequence's last; an encoder
    is asked for all."""
    one = workload.phase in ("prefill", "chunked-prefill", "decode", "mixed")
    return one and not (workload.model is not None and workload.variant == "full")


def leaves_of(inputs: StepInputs) -> list[torch.Tensor]:
    """What a train step makes gradients of: all weights, and states that are given."""
    states = [one for one in inputs.given if one.requires_grad]
    return [*inputs.network.parameters(), *states]


def given_to(
    workload: Workload, network: Network, segments: list[Segment], seed: int, device: torch.device
) -> list[torch.Tensor]:
    """Random tokens of the vocabulary for a model, else states of noise, segment by segment."""
    noise = Noise(seed + _INPUT_SEED, device)
    if workload.scope == "model":
        generator = torch.Generator().manual_seed(seed + _INPUT_SEED)
        assert not isinstance(network, PlainStack)
        most = network.architecture.vocab_size
        shapes = [(one.batch_size, one.num_tokens) for one in segments]
        return [torch.randint(most, shape, generator=generator).to(device) for shape in shapes]
    width, dtype = state_width(network), torch_dtype(workload.dtype)
    states = [noise(one.batch_size, one.num_tokens, width, dtype=dtype) for one in segments]
    return [one.requires_grad_(workload.phase == "train") for one in states]


def read_by(
    workload: Workload, network: Network, seed: int, device: torch.device
) -> torch.Tensor | None:
    """The source of an encoder–decoder: tokens for its encoder, states of noise where there is no
    encoder; None of other models."""
    if isinstance(network, PlainStack) or not has_cross(network):
        return None
    length = workload.source_len or workload.kv_len
    if network.encoder is not None:
        generator = torch.Generator().manual_seed(seed + 2 * _INPUT_SEED)
        shape, most = (workload.batch_size, length), network.architecture.vocab_size
        return torch.randint(most, shape, generator=generator).to(device)
    noise = Noise(seed + 2 * _INPUT_SEED, device)
    width = network.architecture.hidden_size
    return noise(workload.batch_size, length, width, dtype=torch_dtype(workload.dtype))


def source_of(workload: Workload, network: Network, read: torch.Tensor) -> Source:
    """What was read, encoded; but for training with the keys and values that all layers see."""
    assert not isinstance(network, PlainStack)
    source = Source(states=read) if read.is_floating_point() else network.encode(read)
    if workload.phase == "train":
        return source
    return network.cached_source(source, workload.kv_dtype)


def source_states(workload: Workload, seed: int, device: torch.device) -> torch.Tensor:
    """What a cross-attention attends to, ``[batch, kv_len, hidden_size]``."""
    noise = Noise(seed + 2 * _INPUT_SEED, device)
    shape = (workload.batch_size, workload.kv_len, workload.hidden_size)
    return noise(*shape, dtype=torch_dtype(workload.dtype))


class ScopeGrower:
    """The same, token by token: the prompt at once, then each token after those before it.

    Without a cache each step computes all tokens so far anew.
    """

    def __init__(
        self, workload: Workload, device: torch.device, seed: int, kind: str | None = None
    ) -> None:
        assert workload.start_len is not None
        self._workload, self._seed, self._device = workload, seed, device
        self._network = build_network(workload.step(workload.kv_len), device, seed, kind)
        self._caches: list[Any] | None = None
        generates = workload.phase == "generate"
        self._length = 0 if generates else workload.start_len
        if workload.kv_cache != "none":
            held = held_by(workload, self._network, self._length, seed, device)
            self._caches = [one.cache() for one in held]
        whole = Segment(batch_size=workload.batch_size, num_tokens=workload.kv_len)
        last = workload.step(workload.kv_len)
        [self._given] = given_to(last, self._network, [whole], seed, device)
        self._read = read_by(workload, self._network, seed, device)
        self._source: Source | None = None
        if self._read is not None and not generates:
            self._source = source_of(workload, self._network, self._read)
        if generates:
            prepare_kernels(self._network, [self._segment(0, workload.start_len)])
        self.ready(workload.start_len + 1)

    def _segment(self, first_pos: int, num_tokens: int) -> Segment:
        return Segment(
            batch_size=self._workload.batch_size, num_tokens=num_tokens, first_pos=first_pos,
            caches=self._caches,
        )  # fmt: skip

    def active(self) -> AbstractContextManager[object]:
        return self._network.pinned()

    def ready(self, kv_len: int) -> None:
        first_pos = 0 if self._caches is None else kv_len - 1
        self._next = self._segment(first_pos, kv_len - first_pos)
        prepare_kernels(self._network, [self._next])

    def prompt(self, *, keep: bool) -> torch.Tensor:
        assert self._workload.start_len is not None
        self._encode()
        return self._run(self._segment(0, self._workload.start_len), keep=keep)

    def step(self, *, keep: bool) -> torch.Tensor:
        if self._caches is None:
            self._encode()
        return self._run(self._next, keep=keep)

    def _encode(self) -> None:
        if self._read is not None:
            self._source = source_of(self._workload, self._network, self._read)

    def _run(self, segment: Segment, *, keep: bool) -> torch.Tensor:
        given = self._given[:, segment.first_pos : segment.kv_len]
        step = self._network.step([replace(segment, source=self._source)], keeps=keep)
        return self._network.run([given], step, last_only=True)

    def cache_bytes(self) -> CacheBytes:
        of_source = self._source.caches if self._source is not None else None
        return bytes_of_caches([*(of_source or ()), *(self._caches or ())])
