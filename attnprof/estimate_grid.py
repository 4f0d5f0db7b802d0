"""Lists of models, GPUs, engines, contexts and dtypes -> one comparison table, vectorised.

What depends on names is planned once for each combination of them; GPUs of one kind, contexts and
utilisations are then arrays.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnprof.capacity.request import EstimateRequest, deployment_of, device_named, is_cpu
from attnprof.engines import llama_cpp, sglang, share, vllm
from attnprof.engines.base import Deployment, cached_element_bytes
from attnprof.engines.pool import BlockPool
from attnprof.engines.profile import engine_named
from attnprof.engines.quantize import quantized
from attnprof.engines.registry import keeps_cache, plan_memory, uncached_sequences
from attnprof.errors import UsageError
from attnprof.gpus import Gpu
from attnprof.models.spec import ModelSpec
from attnprof.serving.latency import Limits
from attnprof.serving.offers import HOLDS, Offer, offer_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[Any]

MAX_COMBINATIONS = 10_000_000
MAX_OFFERS = 500  # combinations whose latency is worked out, a few milliseconds each


@dataclass(frozen=True)
class GridRequest:
    """The axes of a grid, and the dtype of all; None is the default of the engine or the model."""

    models: tuple[ModelSpec, ...]
    gpus: tuple[str, ...]
    engines: tuple[str, ...] = ("vllm",)
    max_model_lens: tuple[int, ...] = (8192,)
    tps: tuple[int, ...] = (1,)
    kv_dtypes: tuple[str, ...] = ("auto",)
    quantizations: tuple[str | None, ...] = (None,)
    utilizations: tuple[float | None, ...] = (None,)
    max_num_seqs: tuple[int | None, ...] = (None,)
    dtype: str | None = None

    @property
    def axes(self) -> tuple[tuple[Any, ...], ...]:
        return tuple(value for value in vars(self).values() if isinstance(value, tuple))

    @property
    def num_combinations(self) -> int:
        return math.prod(len(axis) for axis in self.axes)


@dataclass(frozen=True)
class Asked:
    """What each combination is asked for: lengths, limits of latency, and a price."""

    prompt_len: int | None = None
    output_len: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    price: str | None = None
    safely: bool = False

    @property
    def limits(self) -> Limits:
        return Limits(self.ttft_s, self.tpot_s)


@dataclass(frozen=True)
class Grid:
    """The table as columns of equal length: names as indices into the request's axes.

    ``reason`` is empty where a combination can be planned.
    """

    request: GridRequest
    axes: dict[str, "Numbers"]
    weight_bytes: "Numbers"
    kv_bytes: "Numbers"
    kv_tokens: "Numbers"
    max_concurrency: "Numbers"
    fits: "Numbers"
    skipped: tuple[tuple[dict[str, Any], str], ...]

    def __len__(self) -> int:
        return len(self.kv_bytes)

    def rows(self) -> list[dict[str, Any]]:
        """The table as one mapping a combination, names resolved."""
        request = self.request
        names: dict[str, tuple[Any, ...]] = {
            "model": tuple(model.name for model in request.models),
            "gpu": request.gpus,
            "engine": request.engines,
            "max_model_len": request.max_model_lens,
            "tp": request.tps,
            "kv_dtype": request.kv_dtypes,
            "quantization": request.quantizations,
            "gpu_memory_utilization": request.utilizations,
            "max_num_seqs": request.max_num_seqs,
        }
        columns = {
            name: [names[name][index] for index in self.axes[name].tolist()] for name in names
        }
        for name in ("weight_bytes", "kv_bytes", "kv_tokens", "max_concurrency", "fits"):
            columns[name] = getattr(self, name).tolist()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def grid_offers(grid: Grid, asked: Asked) -> list[Offer]:
    """What each combination of a grid serves, how fast, and at what cost, in the grid's order.

    Raises:
        UsageError: More than :data:`MAX_OFFERS` combinations, or a length, limit or price that is
            none.
    """
    if len(grid) > MAX_OFFERS:
        raise UsageError(
            f"the latency of {len(grid):,} combinations is asked for",
            f"keep it to {MAX_OFFERS}, or leave lengths, --ttft, --tpot and --price out",
        )
    models = [grid.request.models[index] for index in grid.axes["model"].tolist()]
    return [
        offer_of(
            EstimateRequest(
                model=model,
                dtype=grid.request.dtype,
                **{name: row[name] for name in _AXES if name != "model"},
                **vars(asked),
            )
        )
        for model, row in zip(models, grid.rows(), strict=True)
    ]


def cheapest_of(offers: Sequence[Offer]) -> int | None:
    """Which of several offers has the cheapest output tokens; None where fewer than two have a
    price."""
    costs = {index: cost for index, offer in enumerate(offers)
             if offer.verdict == HOLDS
             and (cost := offer.per_million_output_tokens) is not None}  # fmt: skip
    return min(costs, key=costs.__getitem__) if len(costs) > 1 else None


_AXES = (
    "model", "engine", "tp", "kv_dtype", "quantization", "max_num_seqs", "gpu", "max_model_len",
    "gpu_memory_utilization",
)  # fmt: skip


def estimate_grid(request: GridRequest) -> Grid:
    """Memory and capacity of every combination of a grid.

    Combinations that make no sense (ranks that do not divide the heads) are skipped with their
    reason, not dropped in silence.

    Raises:
        UsageError: An axis is empty or too long together, or a name is none.
    """
    import numpy as np

    if any(not axis for axis in request.axes):
        raise UsageError("an axis of the grid is empty", "give each axis a value")
    if request.num_combinations > MAX_COMBINATIONS:
        raise UsageError(
            f"the grid has {request.num_combinations} combinations",
            f"keep it to {MAX_COMBINATIONS}",
        )
    for context in request.max_model_lens:
        if context < 1:
            raise UsageError(f"max_model_len is {context}", "write a positive number of tokens")
    cards = [device_named(name) for name in request.gpus]
    for name in request.engines:
        engine_named(name)
    for name in request.kv_dtypes:
        cached_element_bytes(name, "bfloat16")
    for method in request.quantizations:
        if method is not None:
            quantized(request.models[0], method)
    blocks: list[tuple[tuple[int, ...], list[int], dict[str, Numbers]]] = []
    skipped: list[tuple[dict[str, Any], str]] = []
    named = (request.models, request.engines, request.tps, request.kv_dtypes,
             request.quantizations, request.max_num_seqs)  # fmt: skip
    combinations = itertools.product(*(range(len(axis)) for axis in named))
    for combination, places in itertools.product(combinations, _gpus_and_cpu(request.gpus)):
        model = request.models[combination[0]]
        engine, tp = request.engines[combination[1]], request.tps[combination[2]]
        kv_dtype = request.kv_dtypes[combination[3]]
        quantization = request.quantizations[combination[4]]
        seqs = request.max_num_seqs[combination[5]]
        base = EstimateRequest(
            model=model, gpu=request.gpus[places[0]], engine=engine, tp=tp, kv_dtype=kv_dtype,
            quantization=quantization, max_num_seqs=seqs,
            max_model_len=max(request.max_model_lens), dtype=request.dtype,
        )  # fmt: skip
        try:
            deployment = deployment_of(base)
        except UsageError as error:
            values = (model.name, engine, tp, kv_dtype, quantization, seqs)
            what = dict(zip(_AXES[:6], values, strict=True))
            if is_cpu(base.gpu):
                what = {**what, "gpu": base.gpu}
            skipped.append((what, error.problem))
            continue
        for members in _kinds_of_card(deployment, cards, places):
            figures = _figures(deployment, [cards[index] for index in members], request)
            blocks.append((combination, members, figures))
    return _joined(request, blocks, tuple(skipped), np)


def _gpus_and_cpu(names: Sequence[str]) -> list[list[int]]:
    """Indices of the GPUs, and apart those of the CPU, on which few engines and ranks go."""
    kinds: dict[bool, list[int]] = {}
    for index, name in enumerate(names):
        kinds.setdefault(is_cpu(name), []).append(index)
    return list(kinds.values())


def _kinds_of_card(
    deployment: Deployment, cards: list[Gpu], places: Sequence[int]
) -> list[list[int]]:
    """GPUs that an engine treats alike but for their memory, as indices."""
    kinds: dict[Any, list[int]] = {}
    for index in places:
        gpu = cards[index]
        placed = replace(deployment, gpu=gpu, total_bytes=gpu.visible_memory_bytes)
        key: Any = (placed.is_large_card, placed.is_linked)
        if deployment.engine.kind == "sglang":
            key = (*key, gpu.memory_bytes)
        kinds.setdefault(key, []).append(index)
    return list(kinds.values())


def _figures(
    deployment: Deployment, cards: list[Gpu], request: GridRequest
) -> dict[str, "Numbers"]:
    """Figures of shape [card, context, utilisation] for cards that are treated alike."""
    import numpy as np

    totals = np.array([card.visible_memory_bytes for card in cards], dtype=np.float64)
    contexts = np.array(request.max_model_lens, dtype=np.int64)
    shape = (len(cards), len(contexts), len(request.utilizations))
    kv, concurrency, tokens = (np.zeros(shape) for _ in range(3))
    weights = 0
    on_card = replace(deployment, gpu=cards[0], total_bytes=int(totals[0]))
    for third, utilization in enumerate(request.utilizations):
        for columns in _alike(on_card, contexts):
            placed = replace(
                on_card,
                gpu_memory_utilization=utilization,
                max_model_len=int(contexts[columns].max()),
            )
            plan = plan_memory(placed)
            weights = plan.weight_bytes
            slope = _share_of_total(placed)
            room = plan.kv_bytes + slope * (totals - totals[0])
            if not keeps_cache(placed.model):
                room = np.minimum(room, 0.0)
            kv[:, columns, third] = room[:, None]
            each, count = _capacity(placed, room, contexts[columns])
            concurrency[:, columns, third] = each
            tokens[:, columns, third] = count
    return {
        "weight_bytes": np.full(shape, weights, dtype=np.int64),
        "kv_bytes": kv,
        "kv_tokens": tokens,
        "max_concurrency": concurrency,
    }


def _alike(deployment: Deployment, contexts: "Numbers") -> list["Numbers"]:
    """Contexts that one plan serves: all, unless the profile run's length follows the context."""
    import numpy as np

    engine = deployment.engine
    follows = engine.kind in ("torch", "ollama") or bool(
        engine.constants.get("profiles_whole_context")
    )
    if engine.kind == "llama-cpp" and not deployment.flash_attention:
        follows = True
    every = np.arange(len(contexts))
    return [np.array([index]) for index in every] if follows else [every]


def _share_of_total(deployment: Deployment) -> float:
    """How the cache grows with a card's memory: its share of each further byte."""
    kind = deployment.engine.kind
    if kind == "vllm":
        return vllm.utilization(deployment)
    if kind == "sglang":
        return sglang.static_fraction(deployment)
    if kind in ("tensorrt-llm", "lmdeploy", "tgi"):
        return share.cache_share(deployment)
    return 1.0


def _capacity(
    deployment: Deployment, room: "Numbers", contexts: "Numbers"
) -> tuple["Numbers", "Numbers"]:
    """Concurrency and logged tokens, of shape [card, context]."""
    import numpy as np

    engine = deployment.engine
    held = np.maximum(room, 0.0)
    if not keeps_cache(deployment.model):
        at_once = uncached_sequences(deployment, plan_memory(deployment))
        each = np.where(room < 0, 0.0, at_once)
        return np.repeat(each[:, None], len(contexts), 1), np.zeros((len(room), len(contexts)))
    if engine.kind in ("vllm", "tensorrt-llm", "lmdeploy", "tgi", "torch"):
        if engine.kind == "vllm":
            pool = vllm.pool(deployment)
        else:
            block = 1 if engine.kind == "torch" else int(engine.number("block_tokens"))
            pool = share.pool(deployment, deployment.block_size or block)
        exact = held / pool.bytes_per_block
        blocks = np.ceil(exact) if engine.kind in share.ROUNDS_UP else np.floor(exact)
        return _pool_capacity(pool, blocks, contexts)
    if engine.kind == "sglang":
        unit = sglang.bytes_per_token(deployment)
        states = sglang.state_bytes_per_slot(deployment)
        if states or not unit:
            return _one_by_one(deployment, room, contexts)
        tokens = np.floor(held / unit)
        return tokens[:, None] / contexts[None, :], np.repeat(tokens[:, None], len(contexts), 1)
    if engine.kind == "llama-cpp":
        cells = (llama_cpp.cells_of(deployment, int(length), 1) for length in contexts)
        each = np.array([llama_cpp.sequence_bytes(deployment, one) for one in cells])
        exact = held[:, None] / each[None, :]
        return np.floor(exact), np.floor(exact * contexts[None, :])
    return _one_by_one(deployment, room, contexts)


def _one_by_one(
    deployment: Deployment, room: "Numbers", contexts: "Numbers"
) -> tuple["Numbers", "Numbers"]:
    """For engines whose capacity is no closed form of the room: a plan for each."""
    import numpy as np

    slope = _share_of_total(deployment)
    here = plan_memory(deployment).kv_bytes
    each, count = (np.zeros((len(room), len(contexts))) for _ in range(2))
    for row, value in enumerate(room.tolist()):
        total = deployment.total_bytes + round((value - here) / slope)
        for column, context in enumerate(contexts.tolist()):
            plan = plan_memory(replace(deployment, total_bytes=total, max_model_len=context))
            each[row, column], count[row, column] = plan.max_concurrency, plan.kv_tokens
    return each, count


def _pool_capacity(
    pool: BlockPool, blocks: "Numbers", contexts: "Numbers"
) -> tuple["Numbers", "Numbers"]:
    import numpy as np

    needed = np.array([pool.blocks_per_sequence(int(length)) for length in contexts])
    concurrency = blocks[:, None] / needed[None, :]
    if pool.shares_blocks:
        concurrency = blocks[:, None] * pool.block_tokens / contexts[None, :]
    if len(pool.groups) > 1 and pool.tokens_rule == "concurrency":
        return concurrency, np.floor(concurrency * contexts[None, :])
    tokens = blocks // len(pool.groups) * pool.block_tokens
    return concurrency, np.repeat(tokens[:, None], len(contexts), axis=1)


def _joined(
    request: GridRequest,
    blocks: list[tuple[tuple[int, ...], list[int], dict[str, "Numbers"]]],
    skipped: tuple[tuple[dict[str, Any], str], ...],
    np: Any,
) -> Grid:
    """One table of all blocks, with the axes as columns of indices."""
    axes: dict[str, list[Numbers]] = {name: [] for name in _AXES}
    columns: dict[str, list[Numbers]] = {
        name: [] for name in ("weight_bytes", "kv_bytes", "kv_tokens", "max_concurrency")
    }
    for combination, members, figures in blocks:
        shape = figures["kv_bytes"].shape
        size = figures["kv_bytes"].size
        for name, index in zip(_AXES[:6], combination, strict=True):
            axes[name].append(np.full(size, index, dtype=np.int32))
        indices = np.meshgrid(
            np.array(members), np.arange(shape[1]), np.arange(shape[2]), indexing="ij"
        )
        for name, column in zip(_AXES[6:], indices, strict=True):
            axes[name].append(column.ravel())
        for name, parts in columns.items():
            parts.append(figures[name].ravel())
    if not blocks:
        raise UsageError(
            f"no combination of the grid makes sense: {skipped[0][1]}", "change its axes"
        )
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    fits = (joined["max_concurrency"] >= 1) & (joined["kv_bytes"] >= 0)
    return Grid(
        request=request,
        axes={name: np.concatenate(parts) for name, parts in axes.items()},
        fits=fits,
        skipped=skipped,
        **joined,
    )
