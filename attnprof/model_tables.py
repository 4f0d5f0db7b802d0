"""Models -> the tables that list and explain them."""

from collections.abc import Sequence

from attnprof import units
from attnprof.capacity.kv_sizes import model_cache
from attnprof.engines.registry import keeps_cache
from attnprof.models.spec import Layer, ModelSpec
from attnprof.render import Column, Table
from attnprof.theory.weights import weight_bytes

CACHE_LEN = 32768  # of a sequence whose cache is listed
LENGTH = units.tokens(CACHE_LEN)


def _count(params: int) -> str:
    scale, sign = (1e9, "B") if params >= 999.5e6 else (1e6, "M")
    return f"{units.three_digits(params / scale)} {sign}"


def models_table(models: Sequence[ModelSpec]) -> Table:
    """Every model in a line: size, kind of cache, bytes a token."""
    return Table(
        name="models",
        title=units.counted(len(models), "model"),
        columns=(
            Column("name", "Name"),
            Column("num_params", "Parameters", _count, "right"),
            Column("num_active_params", "Active", _count, "right", 2),
            Column("kind", "Attention"),
            Column("num_layers", "Layers", align="right", priority=3),
            Column("weight_bytes", "Weights", units.capacity, "right", 1),
            Column("kv_bytes_per_token", "KV a token", units.capacity, "right"),
            Column("cache_bytes", f"KV of {LENGTH}", units.capacity, "right", 1),
            Column("windowless_bytes_per_token", "No windows", units.capacity, "right", 4),
            Column("max_position_embeddings", "Context", units.tokens, "right", 2),
        ),
        rows=tuple(
            {
                "name": model.name,
                "num_params": model.num_params,
                "num_active_params": model.num_active_params,
                "kind": model.kind,
                "num_layers": model.num_layers,
                "weight_bytes": weight_bytes(model),
                **_cache(model),
                "max_position_embeddings": model.max_position_embeddings,
            }
            for model in models
        ),
        notes=(
            f"KV a token: 16-bit, what one more adds at {LENGTH}, where a full window adds "
            f"nothing. KV of {LENGTH}: what a sequence keeps then, states included. No windows: a "
            "token as if no layer had one. Weights: as the checkpoint stores them.",
            f"{SIZES_ARE} Nearly all listed are; show models NAME says of each.",
        ),
    )


COUNT_IS = (
    "Parameters are: exact, counted matrix by matrix as its family is known to be built, or read "
    "from a file's tensors; by its common shape, as most models of these sizes are built."
)
SIZES_ARE = (
    "Recalled, of sizes and of published counts: written down from memory, not read from the file."
)


def _legend(model: ModelSpec) -> list[str]:
    """What the words on a model's sizes mean."""
    return [COUNT_IS, *([SIZES_ARE] if "recalled" in (model.source or "") else [])]


def _cache(model: ModelSpec) -> dict[str, float | None]:
    """What a model keeps; None of one that keeps nothing, or reads no such length."""
    keys = ("kv_bytes_per_token", "cache_bytes", "windowless_bytes_per_token")
    if not keeps_cache(model):
        return dict.fromkeys(keys)
    found = model_cache(model, CACHE_LEN)
    reads = (model.max_position_embeddings or CACHE_LEN) >= CACHE_LEN
    return dict(
        zip(keys, (found.growth, found.ideal if reads else None, _windowless(model)), strict=True)
    )


def _windowless(model: ModelSpec) -> float:
    """What one more token adds before any window is full. [bytes]"""
    return model_cache(model, 1).growth


def model_table(model: ModelSpec) -> Table:
    """One model: what it is made of and what each token leaves behind."""
    rows = [
        ("parameters", f"{model.num_params:,}", "exact" if model.exact else "by its common shape"),
        ("active for a token", f"{model.num_active_params:,}", ""),
        *((f"  {role}", f"{count:,}", "") for role, count in model.params_by_role().items()),
        ("weights", units.capacity(weight_bytes(model)), _stored_as(model)),
        ("hidden size", f"{model.hidden_size:,}", ""),
        ("vocabulary", f"{model.vocab_size:,}", "tied" if model.tied_embeddings else ""),
        ("longest context", units.tokens(model.max_position_embeddings), ""),
        *_layer_rows(model),
    ]
    rows += _cache_rows(model)
    if model.kind == "encoder":
        rows.append(("KV cache", "none", "an encoder keeps nothing"))
    return Table(
        name="model",
        title=f"{model.name} ({model.architecture or model.model_type})",
        columns=(
            Column("key", "What"),
            Column("value", "Value", wraps=True),
            Column("basis", "Basis", wraps=True, priority=1),
        ),
        rows=tuple({"key": key, "value": value, "basis": basis} for key, value, basis in rows),
        notes=tuple(note for note in (model.source, *model.notes, *_legend(model)) if note),
    )


def _cache_rows(model: ModelSpec) -> list[tuple[str, str, str]]:
    found = _cache(model)
    growth, held = found["kv_bytes_per_token"], found["cache_bytes"]
    if growth is None:
        return []
    rows = []
    whole = found["windowless_bytes_per_token"]
    if whole:
        basis = "" if whole == growth else f"at {LENGTH}, where a full window adds nothing"
        rows.append(("KV a token, 16-bit", units.capacity(growth), basis))
    if whole != growth:
        rows.append(("  ignoring windows", units.capacity(whole), "what common formulas say"))
    if held is not None:
        rows.append((f"KV of {LENGTH}, 16-bit", units.capacity(held), "what is still read"))
    if state := model_cache(model, CACHE_LEN).state:
        rows.append(("state of a sequence", units.capacity(state), "does not grow"))
    return rows


def _stored_as(model: ModelSpec) -> str:
    if model.quantization is None:
        return model.dtype
    return f"{model.quantization.method}, the rest {model.dtype}"


def _layer_rows(model: ModelSpec) -> list[tuple[str, str, str]]:
    """The kinds of layers, those alike together."""
    kinds: dict[str, int] = {}
    for layer in model.layers:
        kind = _layer_words(layer)
        kinds[kind] = kinds.get(kind, 0) + 1
    rows = [("layers", f"{count} × {kind}", "") for kind, count in kinds.items()]
    if model.encoder_layers:
        rows.append(("encoder layers", f"{len(model.encoder_layers)}", ""))
    return rows


def _layer_words(layer: Layer) -> str:
    parts = []
    attention = layer.attention
    if attention is not None:
        heads = f"{attention.num_q_heads} heads on {attention.num_kv_heads} KV heads"
        window = f" of {attention.window_len}" if attention.window_len else ""
        parts.append(f"{attention.kind} attention{window}, {heads}")
    if layer.mixer is not None:
        parts.append(f"{layer.mixer.kind} mixer")
    if layer.cross is not None:
        parts.append("cross-attention")
    if layer.is_moe:
        parts.append("experts")
    return " and ".join(parts) or "no attention"
