"""A deployment and what one step of its engine works on -> how long the step takes, term by term.

A step is a pass through all layers: products with every matrix, attention or a recurrent mixer,
the sums over the ranks, the small kernels between them, the head, and what the engine does on the
host. The roofs are the GPU's; what of a roof is reached, and the overheads, are coefficients.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from attnprof.engines.base import Deployment
from attnprof.engines.weights import rank_matrix_bytes, ranks_of, touched_expert_share
from attnprof.models.spec import Attention, Layer, Matrix, Mixer

NORM_PASSES = 8
"""Times that norms, residuals and activations read or write the hidden state of a layer."""
INDEX_KEY_BYTES = 132  # of a token: 128 in fp8 and their scale (DeepSeek-V3.2)
STATE_BYTES = 4  # recurrent states are kept in float32
ARITHMETIC = {
    "fp8": "float8_e4m3fn", "int8": "int8", "nvfp4": "float4_e2m1fn_x2", "mxfp4": "float8_e4m3fn",
}  # fmt: skip
"""Element types that products of quantised weights are computed in, where the GPU has them; other
methods store weights alone so, and compute in the model's dtype."""
PCIE_BYTES_PER_S = 25e9
"""Of a link that a profile does not state: PCIe 4.0 x16, as collectives reach it."""
TERMS = ("projections", "experts", "attention", "mixer", "all_reduce", "kernels", "head", "engine")


@dataclass(frozen=True)
class Work:
    """What a step works on, on one group of ranks that attend together.

    ``batch`` sequences get one more token each, with ``context`` tokens before it; beside them
    ``new`` tokens of prompts are read, each with ``past`` tokens of its prompt before the chunk,
    ``prompts`` of them ending in this step.
    """

    batch: float = 0
    context: float = 0
    new: float = 0
    past: float = 0
    prompts: int = 1
    source: int = 0
    """Tokens that an encoder read for each sequence."""
    encoded: float = 0
    """Tokens that the encoder reads in this step."""

    @property
    def tokens(self) -> float:
        return self.batch + self.new


@dataclass(frozen=True)
class Step:
    """The time of a step, term by term. [s]"""

    terms: Mapping[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.terms.values())


@dataclass(frozen=True)
class Product:
    """A matrix as one rank multiplies by it; ``num_bytes`` are those of all its experts there."""

    role: str
    flops_per_token: float
    num_bytes: float
    peak_flops_per_s: float
    num_experts: int
    num_active: int
    num_ranks: int
    out_features: int


@dataclass(frozen=True)
class StepModel:
    """The law of a deployment's steps.

    Args:
        coefficients: By name, as ``profiles/serving`` has them: ratios of a time to that at the
            roof, and overheads in seconds.
    """

    deployment: Deployment
    coefficients: Mapping[str, float]

    @property
    def engine(self) -> str:
        return self.deployment.engine.kind

    def of_engine(self, name: str) -> float:
        """The coefficient of this engine, or of any where it has none of its own."""
        own = self.coefficients.get(f"{name}.{self.engine}")
        return self.coefficients[f"{name}.other"] if own is None else own

    @cached_property
    def bytes_per_s(self) -> float:
        assert self.deployment.gpu is not None
        return self.deployment.gpu.memory_bandwidth_bytes_per_s

    @cached_property
    def _num_units(self) -> int | None:
        assert self.deployment.gpu is not None
        return self.deployment.gpu.num_compute_units

    @cached_property
    def link_bytes_per_s(self) -> float:
        assert self.deployment.gpu is not None
        return self.deployment.gpu.link_bytes_per_s or PCIE_BYTES_PER_S

    @cached_property
    def peak_flops_per_s(self) -> float | None:
        """Of arithmetic in the model's dtype; None where the profile has no such figure."""
        gpu = self.deployment.gpu
        assert gpu is not None
        names = (self.deployment.dtype, "bfloat16", "float16", "float32")
        return next((peak for name in names if (peak := gpu.peak_flops_per_s(name))), None)

    @cached_property
    def _launch_scale(self) -> float:
        scale = self.of_engine("launches")
        if self.deployment.enforce_eager:
            scale *= self.coefficients["eager"]
        return scale

    def _products(self, layer: Layer | None, matrices: tuple[Matrix, ...]) -> list[Product]:
        return [self._product(matrix, layer) for matrix in matrices if matrix.role != "embedding"]

    def _product(self, matrix: Matrix, layer: Layer | None) -> Product:
        ranks = ranks_of(matrix, layer, self.deployment)
        return Product(
            role=matrix.role,
            flops_per_token=2 * matrix.num_active_params / ranks,
            num_bytes=rank_matrix_bytes(matrix, layer, self.deployment),
            peak_flops_per_s=self._peak(matrix),
            num_experts=matrix.count,
            num_active=matrix.active_count,
            num_ranks=ranks,
            out_features=matrix.out_features,
        )

    def _peak(self, matrix: Matrix) -> float:
        gpu, quantization = self.deployment.gpu, self.deployment.model.quantization
        plain = self.peak_flops_per_s or math.inf
        assert gpu is not None
        if quantization is None or matrix.role in quantization.skipped_roles:
            return plain
        if quantization.method == "mxfp4" and not gpu.peak_flops_per_s("float4_e2m1fn_x2"):
            return plain  # computed in the model's dtype before there was FP4
        name = ARITHMETIC.get(quantization.method)
        return (gpu.peak_flops_per_s(name) if name else None) or plain

    @cached_property
    def _layers(self) -> list[tuple[Layer, int, list[Product]]]:
        groups = self.deployment.model.layer_groups()
        return [(layer, count, self._products(layer, layer.matrices))
                for layer, count in groups.items()]  # fmt: skip

    @cached_property
    def _encoder(self) -> list[tuple[Layer, int, list[Product]]]:
        groups = Counter(self.deployment.model.encoder_layers)
        return [(layer, count, self._products(layer, layer.matrices))
                for layer, count in groups.items()]  # fmt: skip

    @cached_property
    def _head(self) -> Product | None:
        spec = self.deployment.model
        for matrix in spec.outer:
            tied = spec.tied_embeddings and matrix.role == "embedding"
            if matrix.role == "head" or (tied and matrix.out_features == spec.vocab_size):
                return self._product(matrix, None)
        return None

    def step(self, work: Work) -> Step:
        """The time of a step of the whole model: through all stages, one after another."""
        terms = dict.fromkeys(TERMS, 0.0)
        for layer, count, products in self._layers:
            self._add_layer(terms, layer, count, products, work)
        if work.encoded:
            reading = Work(new=work.encoded, prompts=work.prompts)
            for layer, count, products in self._encoder:
                self._add_layer(terms, layer, count, products, reading)
        if self._head is not None:
            rows = work.batch + (work.prompts if work.new else 0)
            terms["head"] = self._product_s(self._head, rows)
        per_sequence = self.coefficients["sequence"] * work.batch
        terms["engine"] = self.of_engine("step") + per_sequence
        return Step(terms)

    def _add_layer(
        self, terms: dict[str, float], layer: Layer, count: int, products: list[Product],
        work: Work,
    ) -> None:  # fmt: skip
        deployment = self.deployment
        # The experts of a rank serve the sequences of all groups.
        groups = deployment.dp if deployment.dp_attention else 1
        for product in products:
            if product.role == "experts":
                terms["experts"] += count * self._experts_s(product, work.tokens * groups)
            else:
                terms["projections"] += count * self._product_s(product, work.tokens)
        if layer.attention is not None:
            terms["attention"] += count * self._attention_s(layer.attention, work)
        if layer.cross is not None:
            terms["attention"] += count * self._cross_s(layer.cross, work)
        if layer.mixer is not None:
            terms["mixer"] += count * self._mixer_s(layer.mixer, work)
        hidden_bytes = work.tokens * deployment.model.hidden_size * deployment.dtype_bytes
        terms["all_reduce"] += count * self._sums_s(layer, hidden_bytes)
        passes = NORM_PASSES * hidden_bytes / self.bytes_per_s
        terms["kernels"] += count * (self.coefficients["layer"] * self._launch_scale + passes)

    def _product_s(self, product: Product, tokens: float) -> float:
        """Arithmetic and traffic, which overlap in part, and a launch.

        √((c_c · F / P)² + (c_m · B / W)²) + launch
        """
        arithmetic = tokens * product.flops_per_token / product.peak_flops_per_s
        moved = product.num_bytes + tokens * product.out_features * 2 / product.num_ranks
        return self._overlapped_s("gemm", arithmetic, moved) + self._launch_s("launch")

    def _experts_s(self, product: Product, tokens: float) -> float:
        """One grouped product over the experts that are chosen; the fullest rank decides."""
        spread = 1.0
        share = touched_expert_share(max(1.0, tokens), product.num_experts, product.num_active)
        ranks = self.deployment.expert_ranks
        if self.deployment.expert_parallel and ranks > 1:
            most = fullest_rank(product.num_experts * share, product.num_experts, ranks)
            excess = most / product.num_experts * ranks / share - 1
            spread = 1 + self.coefficients["imbalance"] * excess
        arithmetic = tokens * product.flops_per_token / product.peak_flops_per_s
        moved = product.num_bytes * share * spread
        return self._overlapped_s("experts", arithmetic, moved) + self._launch_s("launch")

    def _overlapped_s(self, name: str, arithmetic_s: float, moved: float) -> float:
        traffic_s = self.coefficients[f"{name}_memory"] * moved / self.bytes_per_s
        by_units = self.coefficients.get(f"unit_bytes_per_s.{self.engine}")
        if by_units and self._num_units:
            streamed_s = moved / (by_units * self._num_units)
            traffic_s = (traffic_s**4 + streamed_s**4) ** 0.25
        return math.hypot(self.coefficients[f"{name}_compute"] * arithmetic_s, traffic_s)

    def _launch_s(self, name: str) -> float:
        return self.coefficients[name] * self._launch_scale

    def _attention_s(self, attention: Attention, work: Work) -> float:
        """A decode over what each sequence may see, and a prefill of what is new."""
        total = 0.0
        if work.batch:
            total += self._decode_s(attention, work.batch, work.context)
        if work.new:
            total += self._prefill_s(attention, work.new, work.past)
        if attention.indexer is not None:
            total += self._launch_s("indexer")
        return total

    def _decode_s(self, attention: Attention, batch: float, context: float) -> float:
        """Each sequence reads its keys and values, or its latent, once.

        A latent is multiplied as it is kept, by all heads; sparse attention reads the keys that
        its indexer picked, after that has read a small key of every token.
        """
        deployment = self.deployment
        seen = visible(attention, context)
        keys, values = attention.cached_elements(deployment.tp)
        heads = max(1.0, attention.num_q_heads / deployment.tp)
        width = attention.head_dim + attention.v_head_dim
        if attention.kind == "mla":
            width = keys + attention.kv_lora_rank
        if attention.reads_other_layer:
            kept = max(1, attention.num_kv_heads // deployment.tp)
            keys, values = kept * attention.head_dim, kept * attention.v_head_dim
        moved = batch * seen * (keys + values) * deployment.element_bytes
        flops = 2 * batch * heads * seen * width
        if attention.indexer is not None:
            moved += batch * context * INDEX_KEY_BYTES
            flops += batch * context * attention.indexer.num_heads * attention.indexer.head_dim
        arithmetic = flops / (self.peak_flops_per_s or math.inf)
        return self._overlapped_s("decode", arithmetic, moved) + self._launch_s("attention")

    def _prefill_s(self, attention: Attention, new: float, past: float) -> float:
        """Products of queries with the keys before them; keys of the past are read once."""
        deployment = self.deployment
        heads = max(1.0, attention.num_q_heads / deployment.tp)
        pairs = attended(attention, new, past)
        flops = 2 * heads * pairs * (attention.head_dim + attention.v_head_dim)
        if attention.indexer is not None:
            chosen = new * (past + new / 2)
            flops += chosen * attention.indexer.num_heads * attention.indexer.head_dim
        peak = self.peak_flops_per_s or math.inf
        keys, values = attention.cached_elements(deployment.tp)
        moved = (new + visible(attention, past)) * (keys + values) * deployment.element_bytes
        arithmetic = self.coefficients["prefill_compute"] * flops / peak
        return arithmetic + moved / self.bytes_per_s + self._launch_s("attention")

    def _cross_s(self, attention: Attention, work: Work) -> float:
        keys, values = attention.cached_elements(self.deployment.tp)
        sequences = work.batch + (work.prompts if work.new else 0)
        moved = sequences * work.source * (keys + values) * self.deployment.element_bytes
        heads = max(1.0, attention.num_q_heads / self.deployment.tp)
        flops = 2 * work.tokens * work.source * heads * (attention.head_dim + attention.v_head_dim)
        arithmetic = flops / (self.peak_flops_per_s or math.inf)
        return self._overlapped_s("decode", arithmetic, moved) + self._launch_s("attention")

    def _mixer_s(self, mixer: Mixer, work: Work) -> float:
        """The state is read and written for each sequence; a prefill updates it in chunks."""
        convolution, state = mixer.state_elements(self.deployment.tp)
        sequences = work.batch + (work.prompts if work.new else 0)
        moved = 2 * sequences * (convolution * 2 + state * STATE_BYTES)
        flops = 8 * work.tokens * state
        arithmetic = flops / (self.peak_flops_per_s or math.inf)
        return self._overlapped_s("decode", arithmetic, moved) + self._launch_s("mixer")

    def _sums_s(self, layer: Layer, hidden_bytes: float) -> float:
        """Sums over the ranks after attention and after the FFN.

            α + c · 2 · (r − 1) / r · bytes / link

        Groups that attend apart gather what goes to the experts, and scatter what comes back.
        """
        deployment, total = self.deployment, 0.0
        first = layer.attention is not None or layer.mixer is not None
        second = any(m.role in ("ffn", "experts", "shared_experts") for m in layer.matrices)
        gathers = deployment.dp_attention and layer.is_moe
        if deployment.tp > 1:
            times = first + (second and not gathers)
            total += times * self._sum_s(deployment.tp, hidden_bytes)
        if gathers:
            ranks = deployment.expert_ranks
            total += 2 * self._sum_s(ranks, hidden_bytes * deployment.dp / 2)
        return total

    def _sum_s(self, ranks: int, message_bytes: float) -> float:
        sent = 2 * (ranks - 1) / ranks * message_bytes / self.link_bytes_per_s
        return self._launch_s("all_reduce") + self.coefficients["all_reduce_link"] * sent


def visible(attention: Attention, context: float) -> float:
    """Tokens before it that one more token attends: a window, the indexer's choice, or all."""
    if attention.indexer is not None:
        context = min(context, attention.indexer.top_k)
    if attention.tokens_per_entry > 1:
        window = attention.window_len or 0
        return min(context, window) + context / attention.tokens_per_entry
    return min(context, attention.window_len) if attention.window_len else context


def attended(attention: Attention, new: float, past: float) -> float:
    """Pairs of a query among ``new`` tokens and a key it may see, ``past`` ones included.

    >>> attended(Attention("full", 8, 8, 64, 64), 4, 0)
    10.0
    >>> attended(Attention("sliding", 8, 8, 64, 64, window_len=2), 4, 0)
    7.0
    """
    if not attention.causal:
        return new * (new + past)
    reach = attention.window_len or math.inf
    if attention.indexer is not None:
        reach = min(reach, attention.indexer.top_k)
    ramp = min(new, max(0.0, reach - past))
    rest = (new - ramp) * reach if new > ramp else 0.0
    return ramp * (ramp + 1) / 2 + ramp * past + rest


def fullest_rank(touched: float, num_experts: int, ranks: int) -> float:
    """Experts that work on the fullest of ``ranks``, when ``touched`` of all are chosen.

        m + √(2 · m · (1 − touched / E) · ln r), m = touched / r

    The greatest of r counts that scatter as those of a draw; when all work, every rank has the
    same.

    >>> fullest_rank(256, 256, 8), round(fullest_rank(32, 256, 8), 1)
    (32.0, 7.8)
    """
    mean = touched / ranks
    left = max(0.0, 1 - touched / num_experts)
    return min(num_experts / ranks, mean + math.sqrt(2 * mean * left * math.log(ranks)))
