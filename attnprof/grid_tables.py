"""A grid of deployments and what each offers -> the table that compares them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof import units
from attnprof.capacity.latency import DEFAULT_OUTPUT, DEFAULT_PROMPT
from attnprof.estimate_grid import Asked, cheapest_of
from attnprof.estimate_words import NOT_SAFELY
from attnprof.render import Column, Table
from attnprof.serving.offers import HOLDS

if TYPE_CHECKING:
    from attnprof.estimate_grid import Grid
    from attnprof.serving.offers import Offer

CHEAPEST = "cheapest"
NOT_SAFE = "not safely"
ASSUMED = ", assumed"
_AXES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "max_model_len": ("Context", units.tokens), "tp": ("TP", str), "model": ("Model", str),
    "gpu": ("GPU", str), "engine": ("Engine", str), "kv_dtype": ("KV", str),
    "quantization": ("Quantization", str), "gpu_memory_utilization": ("Utilisation", str),
    "max_num_seqs": ("Max seqs", str),
}  # fmt: skip


def grid_rows(grid: "Grid", offers: "Sequence[Offer]") -> list[dict[str, Any]]:
    """The rows of the document: what each combination holds, and what it offers."""
    rows = grid.rows()
    if not offers:
        return rows
    cheapest = cheapest_of(offers)
    return [
        {**row, **offer.to_json(), "cheapest": index == cheapest}
        for index, (row, offer) in enumerate(zip(rows, offers, strict=True))
    ]


def grid_table(grid: "Grid", offers: "Sequence[Offer]" = (), asked: Asked | None = None) -> Table:
    """The comparison of a grid: within limits the cheapest first, else the most sequences."""
    asked = asked or Asked()
    rows = [_shown(row) if offers else row for row in grid_rows(grid, offers)]
    rows.sort(key=_by_cost if asked.limits.are_given else lambda row: -row["max_concurrency"])
    varied = {name for name in grid.axes if len({row[name] for row in rows}) > 1}
    axes = [
        Column(name, heading, form, priority=0 if name in varied else 5)
        for name, (heading, form) in _AXES.items()
    ]
    notes = [
        f"Left out: {', '.join(f'{k} {v}' for k, v in combination.items() if v)}: {reason}."
        for combination, reason in grid.skipped
    ]
    further = 3 if offers else 0
    return Table(
        name="grid",
        title=f"{len(grid):,} combinations{within(asked)} (estimated)",
        columns=(
            *axes,
            *(_offer_columns(offers, asked) if offers else ()),
            Column("fits", "Fits", lambda fits: "yes" if fits else "no", priority=further),
            Column("max_concurrency", "Of full context", _number, "right", further),
            Column("kv_tokens", "KV tokens", _number, "right", further + 1),
            Column("weight_bytes", "Weights", units.capacity, "right", further + 2),
            Column("kv_bytes", "KV cache", units.capacity, "right", further + 2),
        ),
        rows=tuple(rows),
        notes=(*(_words(offers, asked) if offers else ()), *notes),
        alarming=lambda row: not row["fits"] or row.get("verdict", HOLDS) != HOLDS,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _offer_columns(offers: "Sequence[Offer]", asked: Asked) -> list[Column]:
    currency = next((offer.currency for offer in offers if offer.currency), None)
    decides, beside = (1, 0) if asked.safely else (0, 1)
    safe = [Column("safe_batch_size", "Safely", "{:,}".format, "right", beside)]
    cost = [
        Column("per_million_output_tokens", f"{currency}/M", "{:.3g}".format, "right"),
        Column("per_million_input_tokens", f"{currency}/M in", "{:.3g}".format, "right", 2),
    ]
    return [
        Column("batch_size", "At once", "{:,}".format, "right", decides),
        *(safe if asked.limits.are_given else []),
        Column("tpot_s_mid", "Per token", units.seconds, "right", 1),
        Column("tpot_s_high", "At most", units.seconds, "right", 2),
        Column("ttft_s_mid", "First token", units.seconds, "right", 1),
        Column("output_tokens_per_s_mid", "Output", lambda rate: f"{_number(rate)}/s", "right"),
        *(cost if currency else []),
        Column("mark", "Verdict"),
        Column("latency_is", "Latency is", priority=2),
    ]


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its intervals side by side, and what people see of the verdict.

    That it rests on a latency that is assumed it says itself: narrow terminals drop that column.
    """
    ends = {
        f"{name}_{end}": row[name][end]
        for name in ("ttft_s", "tpot_s", "output_tokens_per_s")
        for end in ("low", "mid", "high")
    }
    mark = CHEAPEST if row["cheapest"] else row["verdict"]
    if row["batch_size"] and row["safe_batch_size"] == 0:
        mark = NOT_SAFE if row["verdict"] != HOLDS else mark + NOT_SAFELY
    if row["latency_is"] == "assumed":
        mark += ASSUMED
    return {**row, **ends, "mark": mark}


def _by_cost(row: Mapping[str, Any]) -> tuple[Any, ...]:
    cost, output = row["per_million_output_tokens"], row["output_tokens_per_s_mid"]
    return (row["verdict"] != HOLDS, cost is None, cost or 0.0, -(output or 0.0))


def within(asked: Asked) -> str:
    """The limits that are asked for, in words after those on what holds them."""
    if not asked.limits.are_given:
        return ""
    return f" {'safely ' if asked.safely else ''}within {asked.limits.words}"


def _words(offers: "Sequence[Offer]", asked: Asked) -> list[str]:
    prompt = units.tokens(asked.prompt_len or DEFAULT_PROMPT)
    output = units.tokens(asked.output_len or DEFAULT_OUTPUT)
    least = "" if asked.prompt_len and asked.output_len else ", or what the context has room for"
    most = "the most that hold the limits" if asked.limits.are_given else "as many as are held"
    words = [f"Prompts of {prompt} and answers of {output}{least}; at once: {most}."]
    if asked.limits.are_given:
        decide = " They decide: times, output and cost are at so many." if asked.safely else ""
        words.append(
            f"Safely: by the upper ends of the intervals, which hold 80 % of the time.{decide}"
        )
    words += sorted({f"Unknown: {offer.reason}." for offer in offers if offer.reason})
    if any(offer.verdict == HOLDS and offer.per_hour is None for offer in offers):
        words.append("A GPU without a cost is not in the list of prices: give --price.")
    listed = {offer.prices.words for offer in offers if offer.prices and offer.per_hour is not None}
    words += [f"Prices: by {one} (attnprof show prices)." for one in sorted(listed)]
    return words
