"""What a workload computes in one call: built, called, looked at and held against a reference.

One class a kind of thing that is computed; how a call is timed is each device's own.
"""

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from attnprof.errors import UnsupportedError
from attnprof.measured import Check, Part
from attnprof.workload import Workload
from attnprof.workloads.out_of_memory import raising_out_of_memory
from attnprof.workloads.precision import multiplying
from attnprof.workloads.profiled import Profile, profiled

_REFUSALS = ("No viable backend", "No available kernel", "not implemented for", "NYI")

NOISE_BLOCK = 262_139  # prime, so that rows of any width come out different when it repeats

Timed = Callable[[Callable[[], object]], tuple[float, float | None]]  # -> wall s, CPU s


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


class Operation(ABC):
    """One call of a workload, ready to be made again and again.

    The first call is special, and made when :attr:`profile` is first asked for: it runs under the
    profiler, shows which kernel really runs and what it weighs, and its output is the one that is
    checked. What compiles makes it while building.

    Args:
        kind: Of the device, where it is not torch's name for it (``rocm`` runs as ``cuda``).

    Raises:
        UnsupportedError: The backend or the device lacks something, in torch's own words; of what
            does not compile it may come with the first call.
        OutOfMemoryError: There is no room for the tensors or for the first call.
    """

    compiles = False
    """Whether the first call compiles, and so is preparation."""
    operators: tuple[str, ...] = ()
    """One of torch's operators that begin so must be seen to run."""

    def __init__(
        self, workload: Workload, device: torch.device, seed: int, kind: str | None = None
    ) -> None:
        self.workload, self.device, self.seed = workload, device, seed
        self._first_output: Any = None
        self._profile: Profile | None = None
        started = time.perf_counter()
        with raising_out_of_memory():
            self.prepare(kind)
            self.prepare_s = time.perf_counter() - started
            self.inputs: Any = self.allocate()
        if self.compiles:
            started = time.perf_counter()
            self._profile = self._call_first()
            self.prepare_s += time.perf_counter() - started

    @abstractmethod
    def prepare(self, kind: str | None) -> None:
        """Choose and set up the kernels, before any tensor is made."""

    @abstractmethod
    def allocate(self) -> Any:
        """Every tensor that a call reads: a GPU makes copies of them, so that calls are cold."""

    @abstractmethod
    def run(self, inputs: Any) -> Any:
        """One call on ``inputs``; what it gives last: a tensor, or several of one call."""

    @abstractmethod
    def compared(self, output: Any) -> Check:
        """``output`` held against a float64 reference."""

    @property
    @abstractmethod
    def kv_bytes(self) -> int:
        """Of keys and values that the inputs hold, new tokens included where they have no slot."""

    @property
    def weight_bytes(self) -> int:
        return 0

    @property
    def mask_bytes(self) -> int:
        """Of masks and biases that are held between calls like the inputs."""
        return 0

    def pinned(self) -> AbstractContextManager[object]:
        """Entered once around many calls: choosing a kernel costs as much as a small call."""
        return nullcontext()

    def parts(self, timed: Timed, limit_s: float) -> tuple[Part, ...]:
        """What each part of a call takes; none where it has no parts."""
        return ()

    def __call__(self) -> Any:
        return self.run(self.inputs)

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

    @contextmanager
    def active(self) -> Iterator[None]:
        """The pinned kernel, the precision of products, and inference mode where nothing is
        trained, around many calls."""
        trains = self.workload.phase == "train"
        grad = torch.enable_grad() if trains else torch.inference_mode()
        precision = multiplying(self.workload.dtype, self.device)
        with raising_out_of_memory(), grad, precision, self.pinned():
            yield

    def check(self) -> Check:
        """What the first call gave, against float64."""
        if not self.was_called:
            self._profile = self._call_first()
        output, self._first_output = self._first_output, None
        if output is None:
            with self.active():
                output = self()
        with torch.inference_mode(), raising_out_of_memory():
            return self.compared(output)

    def _call_first(self) -> Profile:
        outputs: list[Any] = []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with self.active():
                    profile = profiled(lambda: outputs.append(self()), memory=not self.compiles)
            except RuntimeError as error:
                reason = refusal(error, [str(warning.message) for warning in said])
                if reason is None:
                    raise
                raise UnsupportedError(reason) from error
        if self.operators and not any(
            name.startswith(self.operators) for name in profile.operators
        ):
            ran = ", ".join(profile.operators) or "no attention operator"
            raise UnsupportedError(f"{self.workload.backend} was asked for, but torch ran {ran}")
        self._first_output = outputs[0]
        return profile


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
