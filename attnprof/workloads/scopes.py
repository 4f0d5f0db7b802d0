"""Scopes layer, block and model: attention with what is around it, over steps of real sequences."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
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
    held_by,
    output_width,
    position_bytes,
    prepare_kernels,
    source_cache,
    state_width,
)
from attnprof.workloads.operation import Noise, Operation, Timed
from attnprof.workloads.precision import held_weight_bytes, torch_dtype
from attnprof.workloads.transformer.step import Segment

_INPUT_SEED = 15_485_863  # so that inputs are other noise than the weights of the same seed


@dataclass
class StepInputs:
    """What a call reads: weights, caches, and tokens, or states where there is no embedding."""

    network: Network
    given: list[torch.Tensor]  # of each segment
    segments: list[Segment]
    gradient: torch.Tensor | None = None  # of the output, which a train step sends back


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
        prepare_kernels(network, segments)
        kernels = network.kernels
        self.compiles, self.operators = kernels.compiles, kernels.operators
        given = given_to(workload, network, segments, self.seed, self.device)
        gradient = None
        if workload.phase == "train":
            noise = Noise(self.seed + 1, self.device)
            rows, dtype = sum(segment.num_rows for segment in segments), torch_dtype(workload.dtype)
            gradient = noise(rows, output_width(network), dtype=dtype)
        return StepInputs(network, given, segments, gradient)

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
            caches=caches,
        )  # fmt: skip
        if workload.prefill_len is None:
            return [first]
        return [first, Segment(batch_size=1, num_tokens=workload.prefill_len)]

    def _of_source(self, network: Network) -> list[Any]:
        """Keys and values of the source, made once; in training its states, for each call."""
        assert isinstance(network, PlainStack)
        self.source = states = source_states(self.workload, self.seed, self.device)
        if self.workload.phase == "train":
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
        step = network.step(inputs.segments, keeps=False)
        if inputs.gradient is None:
            return network.run(inputs.given, step, last_only=wants_last(self.workload))
        for leaf in leaves_of(inputs):
            leaf.grad = None
        out = network.run(inputs.given, step)
        torch.autograd.backward(out, inputs.gradient)
        return out.detach()

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
        return sum(
            cache.allocated_bytes_with(0 if self.workload.attention == "cross" else new)
            for segment in self.inputs.segments
            for cache, new in ((one, segment.num_tokens) for one in segment.caches or ())
            if not isinstance(cache, torch.Tensor)
        )

    @property
    def weight_bytes(self) -> int:
        return held_weight_bytes(self.inputs.network)

    @property
    def mask_bytes(self) -> int:
        return self.inputs.network.kernels.mask_bytes + position_bytes(self.inputs.network)


def wants_last(workload: Workload) -> bool:
    """Whether the next token alone is wanted, and so the logits of each sequence's last."""
    return workload.phase in ("prefill", "chunked-prefill", "decode", "mixed")


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
        [self._given] = given_to(
            workload.step(workload.kv_len), self._network, [whole], seed, device
        )
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
        return self._run(self._segment(0, self._workload.start_len), keep=keep)

    def step(self, *, keep: bool) -> torch.Tensor:
        return self._run(self._next, keep=keep)

    def _run(self, segment: Segment, *, keep: bool) -> torch.Tensor:
        given = self._given[:, segment.first_pos : segment.kv_len]
        step = self._network.step([segment], keeps=keep)
        return self._network.run([given], step, last_only=True)

    def cache_bytes(self) -> CacheBytes:
        return bytes_of_caches(self._caches or [])
