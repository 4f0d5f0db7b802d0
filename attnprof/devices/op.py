"""A workload -> real tensors of a stack of layers and the call that attends over all of them.

What is computed is here, for every torch device alike; how it is timed is each device's own.
"""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from attnprof.backends import prepare
from attnprof.devices.base import Check
from attnprof.devices.kv_caches import KvCache, Pair, new_cache
from attnprof.devices.out_of_memory import raising_out_of_memory
from attnprof.devices.profiled import Profile, profiled
from attnprof.devices.reference import held_against_reference
from attnprof.errors import UnsupportedError
from attnprof.workload import Workload

_REFUSALS = ("No viable backend", "No available kernel", "not implemented for", "NYI")

NOISE_BLOCK = 262_139  # prime, so that rows of any width come out different when it repeats


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


class Noise:
    """Seeded normal tensors, made at the speed of a copy.

    A block of normal numbers is drawn for each tensor and repeated when the tensor is longer.
    Never zeros: constant data takes less power, and a clock that is higher than a model's.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(seed % 2**63)

    def __call__(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self.device)
        length = min(NOISE_BLOCK, tensor.numel())
        block = torch.randn(length, generator=self._generator, device=self.device).to(dtype)
        flat = tensor.view(-1)
        whole = length and tensor.numel() // length * length
        if whole:
            flat[:whole].view(-1, length)[:] = block
        flat[whole:] = block[: tensor.numel() - whole]
        return tensor


class AttentionOp:
    """Attention over all layers of a workload, ready to be called again and again.

    A kv-growth workload is built as the decode at its end; :func:`~attnprof.devices.growth.grow`
    runs it from start to end. The first call is special, and made when :attr:`profile` is first
    asked for: it runs under the profiler, shows which kernel really runs and what it weighs, and
    its output is the one that is checked. A backend that compiles makes it while building.

    Raises:
        UnsupportedError: The backend or the device lacks something, in torch's own words; of a
            backend that does not compile it may come with the first call.
        OutOfMemoryError: There is no room for the tensors or for the first call.
    """

    def __init__(
        self, workload: Workload, device: torch.device, seed: int, kind: str | None = None
    ) -> None:
        if workload.phase == "kv-growth":
            workload = replace(workload, phase="decode", start_len=None)
        self.workload = workload
        started = time.perf_counter()
        with raising_out_of_memory():
            self.attention = prepare(workload, device, kind)
            self.prepare_s = time.perf_counter() - started
            self.layers = build_layers(workload, device, seed, held_len=workload.kv_len - 1)
        self._seed = seed
        self._first_output: torch.Tensor | None = None
        self._profile: Profile | None = None
        if self.attention.compiles:
            started = time.perf_counter()
            self._profile = self._call_first()
            self.prepare_s += time.perf_counter() - started

    @property
    def profile(self) -> Profile:
        """What the profiler saw of the first call, which is made now if it was not yet."""
        if self._profile is None:
            self._profile = self._call_first()
        return self._profile

    @property
    def was_called(self) -> bool:
        """Whether the first call has been made."""
        return self._profile is not None

    @property
    def kernels(self) -> tuple[str, ...]:
        """Torch's names for the attention kernels that the call really runs."""
        return self.profile.operators

    def __call__(self) -> torch.Tensor:
        """Attend in every layer; the output of the last.

        One output is alive at a time, as in a stack whose next layer consumes it.
        """
        out: torch.Tensor | None = None
        for layer in self.layers:
            del out
            out = self._attend(layer)
        assert out is not None
        return out

    def _attend(self, layer: Layer) -> torch.Tensor:
        """A function of its own, so that copies of K and V are gone before the next layer's."""
        k, v = visible(self.workload, layer.keys_and_values())
        return self.attention.attend(layer.q, k, v)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inference mode and the pinned kernel, around any number of calls."""
        with raising_out_of_memory(), torch.inference_mode(), self.attention.pinned():
            yield

    @property
    def kv_bytes(self) -> int:
        """K and V that the layers hold, new tokens included where the cache has no slot yet."""
        return sum(_kv_bytes(layer) for layer in self.layers)

    @property
    def mask_bytes(self) -> int:
        """Of the mask, one for all layers, held between calls like the inputs."""
        return self.attention.mask_bytes

    def check(self) -> Check:
        """The output of the last layer, as the first call gave it, against float64."""
        if not self.was_called:
            self._profile = self._call_first()
        output, self._first_output = self._first_output, None
        if output is None:
            with self.active():
                output = self()
        layer = self.layers[-1]
        with torch.inference_mode(), raising_out_of_memory():
            k, v = visible(self.workload, layer.keys_and_values())
            return held_against_reference(self.workload, layer.q, k, v, output, self._seed)

    def _call_first(self) -> Profile:
        outputs: list[torch.Tensor] = []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with self.active():
                    profile = profiled(
                        lambda: outputs.append(self()), memory=not self.attention.compiles
                    )
            except RuntimeError as error:
                reason = refusal(error, [str(warning.message) for warning in said])
                if reason is None:
                    raise
                raise UnsupportedError(reason) from error
        expected = self.attention.operators
        if expected and not any(name.startswith(expected) for name in profile.operators):
            ran = ", ".join(profile.operators) or "no attention operator"
            raise UnsupportedError(f"{self.workload.backend} was asked for, but torch ran {ran}")
        self._first_output = outputs[0]
        return profile


def build_layers(workload: Workload, device: torch.device, seed: int, held_len: int) -> list[Layer]:
    """The tensors of every layer; of a decode the caches hold ``held_len`` tokens."""
    noise = Noise(seed, device)
    dtype = getattr(torch, workload.dtype)
    cached_dtype = getattr(torch, workload.cached_dtype)
    batch, width = workload.batch_size, workload.head_dim
    q_shape = (batch, workload.num_q_heads, workload.q_len, width)
    kv_shape = (batch, workload.num_kv_heads, workload.q_len, width)

    def cached(*shape: int) -> torch.Tensor:
        return noise(*shape, dtype=cached_dtype)

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
    dtype = getattr(torch, workload.dtype)
    return k.to(dtype), v.to(dtype)


def refusal(error: RuntimeError, warned: list[str]) -> str | None:
    """Torch's reason in an error by which it refuses a workload; None for another error.

    Of a pinned kernel the error says only that there is none; why stands in warnings before it.

    >>> refusal(RuntimeError("No available kernel. Aborting execution."),
    ...     ["Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:1)",
    ...      "Expected query to be Half or BFloat16 (Triggered internally at sdp_utils.cpp:2)"])
    'No available kernel: Expected query to be Half or BFloat16'
    """
    first_line = str(error).strip().partition("\n")[0]
    if type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
        return f"torch.compile failed: {first_line}"
    if not any(text in first_line for text in _REFUSALS):
        return None
    said = [text.partition(" (Triggered internally")[0].strip() for text in warned]
    reasons = [text for text in said if text and not text.endswith(("because:", "used."))]
    return f"{first_line.partition('.')[0]}: {'; '.join(reasons)}" if reasons else first_line


def _kv_bytes(layer: Layer) -> int:
    if layer.cache is None:
        return layer.k.nbytes + layer.v.nbytes
    return layer.cache.allocated_bytes_with(1)
