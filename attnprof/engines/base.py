"""What is deployed, and what an engine makes of it: the two ends of every engine's arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass, field

from attnprof.engines.profile import EngineProfile
from attnprof.errors import UsageError, nearest
from attnprof.gpus import Gpu
from attnprof.models.spec import ModelSpec

GIB = 2**30
LARGE_CARD_BYTES = 70 * GIB
"""From here on vLLM takes larger defaults, unless the card is an A100."""

CACHED_BYTES = {
    "float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5,
    "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32,
    "iq4_nl": 18 / 32, "nvfp4": 0.5 + 1 / 16,
}  # fmt: skip
"""Bytes that one cached element takes, its share of the scales included."""

SPLITS_LAYERS = ("llama-cpp", "ollama")
"""Engines that give whole layers to each GPU, so that no head is cut or copied."""

_CACHED_SPELLINGS = {
    "f32": "float32", "fp32": "float32", "f16": "float16", "fp16": "float16", "half": "float16",
    "bf16": "bfloat16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_ds_mla": "fp8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "fp8_inc": "fp8", "e4m3": "fp8",
}  # fmt: skip


def cached_element_bytes(kv_dtype: str | None, dtype: str) -> float:
    """Bytes of one cached element; ``auto`` and None take the model's dtype. [bytes]

    >>> cached_element_bytes("q8_0", "bfloat16"), cached_element_bytes("auto", "float32")
    (1.0625, 4.0)

    Raises:
        UsageError: No such cache dtype.
    """
    name = "auto" if kv_dtype is None else kv_dtype.lower()
    name = dtype if name == "auto" else name
    found = CACHED_BYTES.get(_CACHED_SPELLINGS.get(name, name))
    if found is None:
        known = ["auto", *CACHED_BYTES, *_CACHED_SPELLINGS]
        raise UsageError(f"unknown cache dtype {kv_dtype!r}", nearest(name, known))
    return found


def longest_within(room: float, needed: Callable[[int], float], limit: int) -> int:
    """The longest context up to ``limit`` that needs no more than ``room``. [tokens]

    >>> longest_within(10, lambda length: 3 * length, 100)
    3
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True)
class Deployment:
    """A model on GPUs under an engine; None is left to the engine's default.

    ``total_bytes`` is one GPU's memory as programs are told. Under ``dp_attention`` the ``dp``
    groups of ranks attend apart and share the experts; without, they are replicas.
    """

    model: ModelSpec
    engine: EngineProfile
    total_bytes: int
    gpu: Gpu | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dp_attention: bool = False
    expert_parallel: bool = False
    dtype: str = "bfloat16"
    kv_dtype: str = "auto"
    v_dtype: str | None = None
    quantization: str | None = None
    max_model_len: int = 8192
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    mamba_ssm_cache_dtype: str | None = None
    num_draft_tokens: int = 0
    draft_layers: int = 0
    flash_attention: bool = True

    @property
    def is_large_card(self) -> bool:
        is_a100 = self.gpu is not None and "a100" in self.gpu.name
        return self.total_bytes >= LARGE_CARD_BYTES and not is_a100

    @property
    def card_size(self) -> str:
        return "large" if self.is_large_card else "small"

    @property
    def is_linked(self) -> bool:
        """Whether the GPU talks to others by more than PCIe, for which engines keep buffers."""
        if self.gpu is None:
            return self.total_bytes >= LARGE_CARD_BYTES
        link = self.gpu.link or ""
        return self.gpu.segment == "datacenter" and "PCIe" not in link and link != ""

    @property
    def element_bytes(self) -> float:
        return cached_element_bytes(self.kv_dtype, self.dtype)

    @property
    def dtype_bytes(self) -> float:
        return cached_element_bytes("auto", self.dtype)

    @property
    def num_gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def expert_ranks(self) -> int:
        """Ranks that the experts are divided among."""
        return self.tp * (self.dp if self.dp_attention else 1)

    @property
    def longest_context(self) -> int:
        """No sequence is longer: the model's positions, or what was asked beyond them. [tokens]"""
        return max(self.max_model_len, self.model.max_position_embeddings or 2**24)


@dataclass(frozen=True)
class MemoryPlan:
    """How an engine splits one GPU's memory, and what its cache then holds.

    ``kv_bytes`` may be negative: the weights and the rest leave no room. ``graph_bytes`` lies
    outside the budget where the engine does not take it from the cache. Tokens and concurrency are
    those of the whole deployment at ``max_model_len``, data-parallel groups included; blocks are
    this GPU's, and ``bytes_per_sequence`` is what one sequence of that length is admitted with on
    it. Activations and graphs are None where an engine's buffers are known as one sum, which then
    is ``runtime_bytes``.
    """

    total_bytes: int
    usable_bytes: int
    weight_bytes: int
    activation_bytes: int | None
    graph_bytes: int | None
    runtime_bytes: int
    kv_bytes: int
    bytes_per_sequence: int
    block_tokens: int
    num_blocks: int
    kv_tokens: int
    max_concurrency: float
    max_context_len: int
    unplanned_bytes: int = 0
    """What the engine needs beside the plan; negative room dies after start-up."""
    settings: dict[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.max_concurrency >= 1 and self.kv_bytes >= 0
