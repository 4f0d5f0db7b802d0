"""Variants, positions and caches -> the tables that list and explain them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnprof import units
from attnprof.models.spec import Attention, ModelSpec
from attnprof.patterns import PARTLY, SEEN, UNSEEN, Pattern, pattern_of, said_of
from attnprof.positions import POSITIONS
from attnprof.render import Column, Table
from attnprof.variants import VARIANTS, parameters_of, variant_named
from attnprof.workload import KV_CACHES

MODEL_LEN = 8192  # at which the layers of a model are compared

ACTS = {
    "nowhere": "nowhere",
    "embeddings": "added to a layer's input",
    "scores": "added to the scores",
    "rotation": "turns queries and keys",
}

# Of each cache: what it is, what a token takes beyond its own bytes, and who published it.
CACHES = {
    "none": (
        "keys and values of the call alone; a generate without one computes all anew each step",
        "nothing is kept",
        "",
    ),
    "contiguous": (
        "one tensor a layer, made anew and copied for each token (torch.cat)",
        "while a step copies, the old copy beside the new",
        "Transformers, DynamicCache",
    ),
    "static": (
        "slots for the longest sequence, set aside at the start",
        "all slots from the first token on",
        "Transformers, StaticCache",
    ),
    "paged": (
        "blocks of block_tokens tokens anywhere in memory, found by a table",
        "what is left of each sequence's last block",
        "Kwon et al. 2023, PagedAttention, arXiv:2309.06180, section 4",
    ),
    "rolling": (
        "as many slots as the sliding window sees, the oldest token's taken by the newest",
        "never more than the window",
        "Jiang et al. 2023, Mistral 7B, arXiv:2310.06825, section 2",
    ),
    "latent": (
        "one latent a token in place of the keys and values of all heads (MLA)",
        "kv_lora_rank + rope_head_dim elements, whatever the number of heads",
        "DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1",
    ),
    "cross": (
        "keys and values of a source, computed once and read by every token",
        "nothing: it does not grow",
        "Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3",
    ),
}


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else units.three_digits(value)


def variants_table() -> Table:
    """Every variant, and what it computes of a square of the drawn size."""
    rows = []
    for name, kind in VARIANTS.items():
        pattern = pattern_of(name, {})
        summary, source = said_of(kind)
        rows.append(
            {
                "name": name,
                "summary": summary,
                "sizes": list(parameters_of(name)),
                "share": pattern.share,
                "source": source,
            }
        )
    return Table(
        name="variants",
        title="Who sees whom",
        columns=(
            Column("name", "Variant"),
            Column("summary", "What it is", wraps=True),
            Column("sizes", "Sizes", ", ".join, wraps=True),
            Column("share", f"Of {pattern.kv_len}²", units.percent, "right", 1),
            Column("source", "Source", priority=9, wraps=True),
        ),
        rows=tuple(rows),
        notes=(
            f"Of {pattern.kv_len}²: pairs computed of {pattern.kv_len} queries and keys, with the "
            "sizes that attnprof show variant NAME draws.",
        ),
    )


def variant_tables(
    name: str, sizes: Mapping[str, int | None], q_len: int | None, kv_len: int | None
) -> list[Table]:
    """One variant: the drawing, and what it costs."""
    pattern = pattern_of(name, dict(sizes), q_len, kv_len)
    return [_drawing(pattern), _costs(pattern)]


def _title(pattern: Pattern) -> str:
    chosen = [f"{key} {getattr(pattern.variant, key)}" for key in parameters_of(pattern.name)]
    ends = f"{units.tokens(pattern.q_len)} queries, {units.tokens(pattern.kv_len)} keys"
    return ", ".join([f"Variant '{pattern.name}'", *chosen, ends])


def _drawing(pattern: Pattern) -> Table:
    """A row for each query, or block of them; each cell drawn twice as wide, and so square."""
    side = pattern.cell_len
    rows = [
        {
            "queries": f"{row.first_q}" if side == 1 else f"{row.first_q}–{row.last_q}",
            "keys": row.cells,
            "num_keys": pattern.keys_seen_by(row.last_q),
        }
        for row in pattern.rows()
    ]
    signs = f"{SEEN} seen, {UNSEEN} not"
    if side > 1:
        signs = (
            f"A cell is {side:,} × {side:,} tokens: {SEEN} all pairs seen, {PARTLY} some, "
            f"{UNSEEN} none"
        )
    return Table(
        name="pattern",
        title=_title(pattern),
        columns=(
            Column("queries", "Query", align="right"),
            Column("keys", f"Keys 0 to {pattern.kv_len - 1}", _squares),
            Column("num_keys", "Sees" if side == 1 else "Last sees", "{:,}".format, "right"),
        ),
        rows=tuple(rows),
        notes=(f"{signs}.",),
    )


def _squares(cells: str) -> str:
    """
    >>> _squares("█·")
    '██· '
    """
    return "".join(cell + (" " if cell == UNSEEN else cell) for cell in cells)


def _costs(pattern: Pattern) -> Table:
    variant, q_len, kv_len = pattern.variant, pattern.q_len, pattern.kv_len
    causal = variant_named("causal").attended_pairs(q_len, kv_len)
    summary, source = said_of(type(variant))
    rows = [
        ("pairs computed", pattern.num_pairs, f"of {q_len * kv_len:,}"),
        ("share of the square", pattern.share, "and so of the FLOP of full attention"),
        ("against causal", pattern.num_pairs / causal, "times its FLOP"),
        ("FLOP of a head", 4 * pattern.num_pairs, "times head_dim"),
        ("keys a query sees, mean", pattern.num_pairs / q_len, f"of {kv_len:,}"),
        ("keys the next token sees", variant.attended_pairs(1, kv_len + 1), "its own included"),
    ]
    return Table(
        name="variant",
        title=f"What '{pattern.name}' costs",
        columns=(
            Column("key", "What"),
            Column("value", "Value", _figure, "right"),
            Column("basis", "Of", wraps=True),
        ),
        rows=tuple({"key": key, "value": value, "basis": basis} for key, value, basis in rows),
        notes=(summary, *([f"Source: {source}"] if source else [])),
    )


def layers_table(model: ModelSpec, kv_len: int | None = None) -> Table:
    """Who sees whom in a model, by layer: those alike together, and the order that they come in."""
    length = kv_len or MODEL_LEN
    causal = variant_named("causal").attended_pairs(length, length)
    kinds: dict[tuple[str, str, int | None], list[int]] = {}
    for stack, number, attention in _attentions(model):
        kinds.setdefault((stack, *_variant_of(attention)), []).append(number)
    rows: list[dict[str, Any]] = []
    for (stack, name, window), numbers in kinds.items():
        pairs = 0
        if name in VARIANTS:
            size = min(window, length) if window else None
            pairs = variant_named(name, {"window_len": size}).attended_pairs(length, length)
        rows.append(
            {
                "stack": stack,
                "variant": name,
                "window_len": window,
                "num_layers": len(numbers),
                "layers": _spans(numbers),
                "against_causal": pairs / causal,
            }
        )
    share = sum(row["against_causal"] * row["num_layers"] for row in rows) / len(
        model.layers or "-"
    )
    is_one_stack = not model.encoder_layers
    return Table(
        name="layers",
        title=f"Who sees whom in {model.name}: {', '.join(map(_counted, rows))}",
        columns=(
            *([] if is_one_stack else [Column("stack", "Stack")]),
            Column("variant", "Variant"),
            Column("window_len", "Window", "{:,}".format, "right"),
            Column("num_layers", "Layers", align="right"),
            Column("layers", "Which", wraps=True),
            Column("against_causal", "Against causal", "{:.3g}×".format, "right"),
        ),
        rows=tuple(rows),
        notes=(f"Against causal: pairs of a prefill of {units.tokens(length)}.",)
        + (
            (f"All layers together compute {share:.3g} of the pairs of as many causal ones.",)
            if is_one_stack
            else ()
        ),
    )


def _counted(row: Mapping[str, Any]) -> str:
    window = f" {row['window_len']:,}" if row["window_len"] else ""
    return f"{row['variant']}{window} ×{row['num_layers']}"


def _attentions(model: ModelSpec) -> Iterator[tuple[str, int, Attention | None]]:
    """Stack, number and attention of every layer, the encoder's first."""
    for number, layer in enumerate(model.encoder_layers):
        yield "encoder", number, layer.attention
    for number, layer in enumerate(model.layers):
        yield "decoder", number, layer.attention
    for number, layer in enumerate(model.layers):
        if layer.cross is not None:
            yield "cross", number, layer.cross


def _variant_of(attention: Attention | None) -> tuple[str, int | None]:
    if attention is None:
        return "no attention", None
    if attention.kind in ("sliding", "chunked") and attention.window_len:
        return attention.kind, attention.window_len
    is_full = attention.kind == "cross" or not attention.causal
    return ("full" if is_full else "causal"), None


def _spans(numbers: Sequence[int]) -> str:
    """Numbers of layers in a few words.

    >>> _spans([0, 1, 2, 3]), _spans([0, 2, 4]), _spans([0, 1, 2, 4, 5, 6, 8, 10, 12])
    ('0–3', '0, 2, 4', '0–2, 4–6, 8 … 12')
    """
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    words = [
        f"{start}" if start == end else f"{start}–{end}"
        for start, end in zip(starts, ends, strict=True)
    ]
    return ", ".join(words) if len(words) <= 4 else f"{', '.join(words[:3])} … {words[-1]}"


def positions_table() -> Table:
    """Every way to tell attention where its tokens are."""
    return Table(
        name="positions",
        title="Where tokens are",
        columns=(
            Column("name", "Position"),
            Column("acts", "Acts", lambda acts: ACTS[acts]),
            Column("summary", "What it is", wraps=True),
            Column("source", "Source", priority=1, wraps=True),
        ),
        rows=tuple(
            {"name": one.name, "acts": one.acts, "summary": one.summary, "source": one.source}
            for one in POSITIONS.values()
        ),
    )


def caches_table() -> Table:
    """Every kind of KV cache, and what it takes beyond its tokens."""
    return Table(
        name="caches",
        title="KV caches",
        columns=(
            Column("name", "Cache"),
            Column("summary", "What it is", wraps=True),
            Column("beyond", "Beyond its tokens", wraps=True),
            Column("source", "Source", priority=1, wraps=True),
        ),
        rows=tuple(
            {"name": name, "summary": summary, "beyond": beyond, "source": source}
            for name in KV_CACHES
            for summary, beyond, source in (CACHES[name],)
        ),
        notes=(
            "Any of them but none may be kept in another element type (kv_dtype): int8, int4 and "
            "fp8 with scales.",
        ),
    )
