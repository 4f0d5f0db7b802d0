"""Whether our plain models are as fast as the Transformers library's, at the same kernel."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnprof.models.build_architecture import build_architecture
from attnprof.workload import Workload
from attnprof.workloads.kv_caches import new_cache
from attnprof.workloads.transformer import Transformer, build_transformer, op_workload
from attnprof.workloads.transformer.loading import load_transformers_weights
from tests.benchmarks.number import Number

RATIO = 1.1
THREADS = 1  # a second one makes both wait for whatever else runs
CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "max_position_embeddings": 4096,
}  # fmt: skip
KERNELS = {"flash": "sdpa", "eager": "eager"}  # ours -> the library's name


@dataclass(frozen=True, kw_only=True)
class Lengths:
    prompt: int = 512
    decoded: int = 32
    rounds: int = 9


def numbers(busy: bool) -> list[Number]:
    return [number for backend in KERNELS for number in of_kernel(backend, CONFIG, Lengths())]


def of_kernel(backend: str, config: dict[str, Any], lengths: Lengths) -> list[Number]:
    """Prefill and decode of both, in turns on the same weights and tokens."""
    with _threads(THREADS), torch.inference_mode():
        theirs = _library_model(config, KERNELS[backend])
        workload = Workload(backend=backend, q_len=lengths.prompt, kv_len=lengths.prompt)
        ours = build_transformer(
            build_architecture(config, "config.json"), workload, torch.device("cpu")
        )
        load_transformers_weights(ours, theirs.state_dict())
        flash = sdpa_kernel([SDPBackend.FLASH_ATTENTION])
        with flash if backend == "flash" else nullcontext():
            return _compared(backend, ours, theirs, lengths)


def _compared(backend: str, ours: Transformer, theirs: Any, lengths: Lengths) -> list[Number]:
    import transformers

    generator = torch.Generator().manual_seed(0)
    shape = (1, lengths.prompt)
    tokens = torch.randint(0, ours.architecture.vocab_size, shape, generator=generator)
    off = (ours(tokens) - theirs(tokens, use_cache=False).logits).abs().max()
    if not off < 1e-4:
        raise AssertionError(f"the two models differ by {off}: nothing to time")
    new = tokens[:, :1]
    prefills, decodes = [], []
    for _ in range(lengths.rounds):
        mine = _time_s(partial(ours, tokens))
        prefills.append((mine, _time_s(partial(theirs, tokens, use_cache=False))))
        caches, held = _empty_caches(ours), transformers.DynamicCache(config=theirs.config)
        ours(tokens, caches)
        theirs(tokens, past_key_values=held)
        mine, its = 0.0, 0.0
        for position in range(lengths.prompt, lengths.prompt + lengths.decoded):
            mine += _time_s(partial(ours, new, caches, position))
            its += _time_s(partial(theirs, new, past_key_values=held))
        decodes.append((mine, its))
    where = f"{ours.architecture.num_layers} layers of {ours.architecture.hidden_size}, float32"
    return [
        _number(f"prefill of {lengths.prompt} tokens, {backend}", prefills, where),
        _number(f"decode after {lengths.prompt} tokens, {backend}", decodes, where),
    ]


def _number(what: str, pairs: list[tuple[float, float]], where: str) -> Number:
    """The median ratio of two calls that were made one after the other."""
    ratio = statistics.median(mine / its for mine, its in pairs)
    return Number(
        name=f"{what}: ours over the Transformers library's",
        found=f"{ratio:.2f}",
        wanted=f"{RATIO} at most",
        met=ratio <= RATIO,
        how=f"CPU time of a thread, median of {len(pairs)} pairs; {where}",
    )


def _time_s(call: Callable[[], object]) -> float:
    started = time.thread_time()
    call()
    return time.thread_time() - started


def _empty_caches(model: Transformer) -> list[Any]:
    """Caches that are concatenated, as the library's are."""
    made = []
    for block in model.architecture.blocks:
        shape = op_workload(
            model.kernels.workload, block.attention, batch_size=1, q_len=1, kv_len=1
        )
        shape = dataclasses.replace(shape, kv_cache="contiguous")
        made.append(new_cache(shape, 0, torch.zeros, seed=0))
    return made


def _library_model(config: dict[str, Any], kernel: str) -> Any:
    import transformers

    values = dict(config)
    made = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(made, attn_implementation=kernel).eval()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)
