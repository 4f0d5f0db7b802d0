"""``--implementation transformers``: the Transformers library's own class of a configuration, with
random weights, in the phases that it has; held against our plain model with the same weights."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention import sdpa_kernel

from attnprof.backends.sdpa import PINS
from attnprof.errors import UnsupportedError
from attnprof.measured import Check
from attnprof.models.load import read_config
from attnprof.models.towers import TEXT_SECTIONS
from attnprof.workload import Workload
from attnprof.workloads.growth import CacheBytes
from attnprof.workloads.library_check import held_against_plain
from attnprof.workloads.operation import Noise, Operation
from attnprof.workloads.precision import torch_dtype

_KERNELS = {"eager": "eager", "flex": "flex_attention"}  # the rest are kernels of SDPA
_SEED = 49_979_687


@dataclass
class LibraryInputs:
    """What a call reads: the model, its cache with what that holds between calls, and tokens."""

    model: Any
    tokens: torch.Tensor
    cache: "LibraryCache | None"
    gradient: torch.Tensor | None = None


class LibraryCache:
    """The library's cache, that can be put back to the tokens it held."""

    def __init__(self, workload: Workload, config: Any) -> None:
        import transformers

        if workload.kv_cache == "static":
            self.cache: Any = transformers.StaticCache(config, max_cache_len=workload.kv_len)
        else:
            self.cache = transformers.DynamicCache(config=config)
        self._held: list[dict[str, Any]] = []

    def fill(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Give every layer these keys and values ``[batch, num_kv_heads, tokens, width]``."""
        for number, (k, v) in enumerate(pairs):
            self.cache.update(k, v, number)
        self.hold()

    def hold(self) -> None:
        """What is in it now is what :meth:`restore` puts back."""
        self._held = [_state(layer) for layer in self.cache.layers]

    def restore(self) -> None:
        """Forget the tokens that came since; slots that they were written to stay as they are."""
        for layer, state in zip(self.cache.layers, self._held, strict=True):
            for name, value in state.items():
                if name == "cumulative_length" and isinstance(value, torch.Tensor):
                    layer.cumulative_length.copy_(value)
                else:
                    setattr(layer, name, value)

    @property
    def allocated_bytes(self) -> int:
        return sum(
            layer.keys.nbytes + layer.values.nbytes
            for layer in self.cache.layers
            if layer.is_initialized
        )

    @property
    def useful_bytes(self) -> int:
        total = 0
        for layer in self.cache.layers:
            if layer.is_initialized:
                slots = layer.keys.shape[-2]
                held = min(int(layer.get_seq_length()), slots)
                total += (layer.keys.nbytes + layer.values.nbytes) // slots * held
        return total


def _state(layer: Any) -> dict[str, Any]:
    kept = ("keys", "values", "cumulative_length", "is_initialized")
    found = {name: getattr(layer, name) for name in kept if hasattr(layer, name)}
    length = found.get("cumulative_length")
    if isinstance(length, torch.Tensor):
        found["cumulative_length"] = length.clone()
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def build_library_model(workload: Workload, device: torch.device, seed: int) -> Any:
    """The library's class for the first ``num_layers`` of the workload's model, seeded.

    Dropout is set to none, so that a step can be computed again.

    Raises:
        UnsupportedError: The library has no such class, or it has not this kernel.
    """
    with _quiet():
        import transformers

        assert workload.model is not None
        values, _ = read_config(workload.model)
        section = next((key for key in TEXT_SECTIONS if values.get(key) is not None), None)
        values = dict(values if section is None else values[section])
        values.pop("quantization_config", None)
        values.update({key: 0.0 for key in values if "drop" in key})
        kind = values.pop("model_type")
        try:
            config = transformers.AutoConfig.for_model(kind, **values)
            config.num_hidden_layers = workload.num_layers
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[: workload.num_layers]
            for key in vars(config):
                if "drop" in key and isinstance(getattr(config, key), float):
                    setattr(config, key, 0.0)
            auto = (
                transformers.AutoModelForMaskedLM
                if type(config) in transformers.AutoModelForMaskedLM._model_mapping
                and workload.variant == "full"
                else transformers.AutoModelForCausalLM
            )
            torch.manual_seed(seed % 2**63)
            with torch.device(device):
                model = auto.from_config(
                    config, attn_implementation=_KERNELS.get(workload.backend, "sdpa"),
                    dtype=torch_dtype(workload.dtype),
                )  # fmt: skip
        except (ImportError, KeyError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UnsupportedError(f"the transformers library says: {reason}") from error
    trains = workload.phase == "train"
    model.requires_grad_(trains)
    if workload.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train() if workload.checkpointing else model.eval()


def tokens_for(workload: Workload, num_tokens: int, config: Any, seed: int) -> torch.Tensor:
    """Seeded tokens ``[batch, num_tokens]`` of the vocabulary, but for that of padding, whose
    embedding the library does not train."""
    generator = torch.Generator().manual_seed(seed + _SEED)
    shape = (workload.batch_size, num_tokens)
    tokens = torch.randint(config.vocab_size, shape, generator=generator)
    padding = getattr(config, "pad_token_id", None)
    if padding is None:
        return tokens
    return torch.where(tokens == padding, (tokens + 1) % config.vocab_size, tokens)


def held_pairs(
    workload: Workload, shapes: list[tuple[int, int, int]], seed: int, device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of the tokens before, of noise, for each layer.

    Args:
        shapes: KV heads, width of a key and of a value, layer by layer.
    """
    noise, dtype = Noise(seed + 2 * _SEED, device), torch_dtype(workload.dtype)
    length = workload.kv_len - workload.q_len
    return [
        (
            noise(workload.batch_size, heads, length, key_dim, dtype=dtype),
            noise(workload.batch_size, heads, length, value_dim, dtype=dtype),
        )
        for heads, key_dim, value_dim in shapes
    ]


class LibraryOperation(Operation):
    """A call of the library's class; its cache is put back before each."""

    inputs: LibraryInputs

    def prepare(self, kind: str | None) -> None:
        from attnprof.backends import backend_named, prepare, unsupported_reason

        reason = unsupported_reason(self.workload, kind or self.device.type)
        if reason is not None:
            raise UnsupportedError(reason)
        of_kernel = replace(
            self.workload, scope="op", model=None, model_digest=None, implementation="plain",
            phase="decode", q_len=1, kv_len=1, kv_cache="static", checkpointing=False,
            variant="causal", window_len=None,
        )  # fmt: skip
        self.operators = prepare(of_kernel, self.device, kind).operators
        self.compiles = backend_named(self.workload.backend).name == "flex"

    def allocate(self) -> LibraryInputs:
        workload = self.workload
        model = build_library_model(workload, self.device, self.seed)
        tokens = tokens_for(workload, workload.q_len, model.config, self.seed).to(self.device)
        cache = None
        if workload.kv_cache != "none":
            cache = LibraryCache(workload, model.config)
            self.pairs = held_pairs(workload, _kv_shapes(workload), self.seed, self.device)
            if workload.q_len < workload.kv_len:
                cache.fill(self.pairs)
            else:
                cache.hold()
        gradient = None
        if workload.phase == "train":
            shape = (*tokens.shape, model.config.vocab_size)
            noise = Noise(self.seed + 1, self.device)
            gradient = noise(*shape, dtype=torch_dtype(workload.dtype))
        return LibraryInputs(model, tokens, cache, gradient)

    def run(self, inputs: LibraryInputs) -> torch.Tensor:
        """Logits ``[rows, vocab_size]``, as our plain model gives them."""
        if inputs.cache is not None:
            inputs.cache.restore()
        if inputs.gradient is not None:
            inputs.model.zero_grad(set_to_none=True)
        logits = library_logits(self.workload, inputs.model, inputs.tokens, inputs.cache)
        if inputs.gradient is None:
            return logits.flatten(0, 1)
        torch.autograd.backward(logits, inputs.gradient)
        return logits.detach().flatten(0, 1)

    def pinned(self) -> AbstractContextManager[object]:
        return pinned_to(self.workload)

    def compared(self, output: torch.Tensor) -> Check:
        return held_against_plain(self, output)

    @property
    def kv_bytes(self) -> int:
        return 0 if self.inputs.cache is None else self.inputs.cache.allocated_bytes

    @property
    def weight_bytes(self) -> int:
        return sum(weight.nbytes for weight in self.inputs.model.parameters())


def pinned_to(workload: Workload) -> AbstractContextManager[object]:
    """SDPA's kernel, where the library computes by SDPA."""
    pin = PINS.get(workload.backend)
    return nullcontext() if pin is None else sdpa_kernel([pin])


def library_logits(
    workload: Workload, model: Any, tokens: torch.Tensor, cache: LibraryCache | None
) -> torch.Tensor:
    """Logits ``[batch, n, vocab_size]`` of the tokens: of each sequence's last where the next
    token alone is wanted."""
    from attnprof.workloads.scopes import wants_last

    more: dict[str, Any] = {}
    if workload.variant != "full":
        more["use_cache"] = cache is not None
        if cache is not None:
            more["past_key_values"] = cache.cache
        if wants_last(workload):
            more["logits_to_keep"] = 1
    logits: torch.Tensor = model(tokens, **more).logits
    return logits[:, -1:] if wants_last(workload) else logits


def _kv_shapes(workload: Workload) -> list[tuple[int, int, int]]:
    from attnprof.workloads.networks import architecture_for

    blocks = (block.attention for block in architecture_for(workload).blocks)
    return [(block.num_kv_heads, block.head_dim, block.v_head_dim) for block in blocks]


class LibraryGrower:
    """The library's class token by token, as its ``generate`` calls it."""

    def __init__(
        self, workload: Workload, device: torch.device, seed: int, kind: str | None = None
    ) -> None:
        assert workload.start_len is not None
        last = workload.step(workload.kv_len)
        self._workload = workload
        self._model = build_library_model(last, device, seed)
        self._tokens = tokens_for(workload, workload.kv_len, self._model.config, seed).to(device)
        self._cache = None
        if workload.kv_cache != "none":
            self._cache = LibraryCache(workload, self._model.config)
            if workload.phase == "kv-growth":
                before = replace(last, q_len=workload.kv_len - workload.start_len)
                self._cache.fill(held_pairs(before, _kv_shapes(last), seed, device))
            self._cache.hold()

    def active(self) -> AbstractContextManager[object]:
        return pinned_to(self._workload)

    def ready(self, kv_len: int) -> None:
        self._next = slice(0 if self._cache is None else kv_len - 1, kv_len)

    def prompt(self, *, keep: bool) -> torch.Tensor:
        return self._run(slice(0, self._workload.start_len), keep=keep)

    def step(self, *, keep: bool) -> torch.Tensor:
        return self._run(self._next, keep=keep)

    def _run(self, which: slice, *, keep: bool) -> torch.Tensor:
        step = replace(self._workload, phase="decode")
        logits = library_logits(step, self._model, self._tokens[:, which], self._cache)
        if self._cache is not None:
            if keep:
                self._cache.hold()
            else:
                self._cache.restore()
        return logits

    def cache_bytes(self) -> CacheBytes:
        if self._cache is None:
            return CacheBytes(useful=0, allocated=0, peak=0)
        allocated = self._cache.allocated_bytes
        return CacheBytes(useful=self._cache.useful_bytes, allocated=allocated, peak=allocated)
