"""Models -> the tables that list and explain them."""

from collections.abc import Sequence

from attnprof import units
from attnprof.models.spec import Layer, ModelSpec
from attnprof.render import Column, Table
from attnprof.theory.model_cache import kv_bytes_per_token, state_bytes_per_sequence
from attnprof.theory.weights import weight_bytes


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
                "kv_bytes_per_token": kv_bytes_per_token(model) or None,
                "max_position_embeddings": model.max_position_embeddings,
            }
            for model in models
        ),
        notes=(
            "KV a token: 16-bit, all layers as if none had a window. Weights: as the checkpoint "
            "stores them.",
        ),
    )


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
    if kv := kv_bytes_per_token(model):
        rows.append(("KV a token, 16-bit", units.capacity(kv), "windows ignored"))
    state = state_bytes_per_sequence(model)
    if state:
        rows.append(("state of a sequence", units.capacity(state), "does not grow"))
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
        notes=tuple(note for note in (model.source, *model.notes) if note),
    )


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
