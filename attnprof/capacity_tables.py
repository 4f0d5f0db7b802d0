"""Estimates, audits, validations, GPUs and engines -> the tables that show them."""

from typing import TYPE_CHECKING

from attnprof import units
from attnprof.capacity.request import CPU
from attnprof.estimate_words import (
    Row,
    binding_row,
    cost_rows,
    fullest_words,
    interval,
    limits_rows,
    loads,
    rate,
    sequences_words,
    users_rows,
)
from attnprof.render import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnprof.audit import Audit
    from attnprof.engines.profile import EngineProfile
    from attnprof.estimate import Estimate
    from attnprof.gpus import Gpu
    from attnprof.serving.latency import Slo
    from attnprof.validate_cases import Validation


OF_ALL_REPLICAS = (
    "Sequences at once: of all replicas, as engines log the memory of each; they hold whole ones."
)
MISSING = "missing before any KV cache"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _error(value: float) -> str:
    return f"{100 * value:+.2f} %".replace("-0.00", "+0.00")


def estimate_tables(found: "Estimate") -> list[Table]:
    """Memory, capacity, latency and what else was tried, of one estimate."""
    title = (
        f"{found.deployment.model.name} on {found.deployment.num_gpus} x {found.gpu.title}, "
        f"{found.deployment.engine.title} {found.deployment.engine.version} (estimated)"
    )
    return [
        _memory_table(found, title),
        _figures_table(found),
        *([_curve_table(found)] if found.curve else []),
        *([_step_table(found)] if found.step is not None else []),
        _alternatives_table(found),
    ]


def _memory_table(found: "Estimate", title: str) -> Table:
    plan, how = found.plan, found.provenance
    graphs_in_budget = found.deployment.engine.constants.get("graphs_in_budget") is not False
    where = "" if graphs_in_budget else ", outside the budget"
    graphs = [(f"CUDA graphs{where}", plan.graph_bytes, "graph_bytes")]
    parts: list[tuple[str, int | None, str]] = [
        ("weights", plan.weight_bytes, "weight_bytes"),
        ("activations, at their peak", plan.activation_bytes, "activation_bytes"),
        ("outside torch: context, communication", plan.runtime_bytes, "runtime_bytes"),
        *(graphs if graphs_in_budget else []),
        ("KV cache", plan.kv_bytes, "kv_bytes")
        if plan.kv_bytes >= 0
        else (MISSING, -plan.kv_bytes, "kv_bytes"),
        (f"budget, of {units.capacity(plan.total_bytes)} seen", plan.usable_bytes, "usable_bytes"),
        *([] if graphs_in_budget else graphs),
        (
            "of this computer" if found.gpu.name == CPU else "GPU, as its driver says",
            found.gpu.memory_bytes,
            "total_bytes",
        ),
    ]
    rows = [
        {
            "part": name,
            "bytes": size,
            "share": None if size is None else size / found.gpu.memory_bytes,
            "provenance": how[f"memory_per_gpu.{key}"],
        }
        for name, size, key in parts
    ]
    return Table(
        name="memory",
        title=title,
        columns=(
            Column("part", "Memory" if found.gpu.name == CPU else "Memory of one GPU"),
            Column("bytes", "Size", units.capacity, "right"),
            Column(
                "share",
                "Of all" if found.gpu.name == CPU else "Of the GPU",
                units.percent,
                "right",
                1,
            ),
            Column("provenance", "Is", priority=1),
        ),
        rows=tuple(rows),
        notes=found.notes,
        alarming=lambda row: row["part"] == MISSING,
    )


def _figures_table(found: "Estimate") -> Table:
    plan, kv, settings = found.plan, found.kv, found.settings
    context = units.tokens(settings["max_model_len"])
    figures: list[Row] = [
        ("fits", "yes" if plan.fits else "no", ""),
        *users_rows(found),
        (
            f"sequences of {context} at once",
            f"{plan.max_concurrency:.3g}",
            sequences_words(found),
        ),
        ("longest single sequence", units.counted(plan.max_context_len, "token"), ""),
    ]
    reads = f"prompt of {units.tokens(settings['prompt_len'])}"
    how = found.provenance["latency.ttft_s"]
    if found.ttft_s.mid is None:
        how = "unknown" if found.latency_fix is None else f"unknown: write {found.latency_fix}"
    if not plan.fits:
        how = "not to be had: it does not fit"
    prompt = f"{reads}, alone; {how}"
    if found.writes_tokens:
        at_once = f"{settings['batch_size']:,} at once" if plan.fits else "if it fitted"
        answer = f"{reads}, {units.tokens(settings['output_len'])} more"
        figures += [
            ("cache", units.counted(plan.kv_tokens, "token"), f"blocks of {plan.block_tokens}"),
            ("cache of a token", units.capacity(kv.bytes_per_token), "over all ranks"),
            (f"cache of {context}", units.capacity(kv.admitted_bytes), "as the engine admits it"),
            ("  at best", units.capacity(kv.ideal_bytes), "what attention still reads"),
            ("  ignoring windows", units.capacity(kv.windowless_bytes), "what common formulas say"),
            ("time to first token", interval(found.ttft_s, units.seconds), prompt),
            (
                "  among the others",
                interval(found.ttft_loaded_s, units.seconds),
                f"the mean of {at_once}{fullest_words(found)}; {how}",
            ),
            (
                f"time per output token, {at_once}",
                interval(found.tpot_s, units.seconds),
                f"{answer}{fullest_words(found)}; {how}",
            ),
            ("output", interval(found.output_tokens_per_s, rate), f"all {at_once}"),
        ]
    else:
        figures.append(("time to read one", interval(found.ttft_s, units.seconds), prompt))
    figures += [*limits_rows(found), binding_row(found), *cost_rows(found)]
    return Table(
        name="capacity",
        title="What it holds and how fast it can be (estimated, not measured here)",
        columns=(
            Column("what", "What", wraps=True),
            Column("value", "Estimate", align="right"),
            Column("basis", "On what basis", wraps=True),
        ),
        rows=tuple({"what": a, "value": b, "basis": c} for a, b, c in figures),
        alarming=lambda row: row["what"] == "fits" and row["value"] == "no",
    )


def _curve_table(found: "Estimate") -> Table:
    """Throughput against latency: what more sequences at once give, and what they cost."""
    rows = [
        {
            "batch_size": round(point.batch_size),
            "tpot_s": point.tpot_s.mid,
            "tpot_high_s": point.tpot_s.high,
            "ttft_loaded_s": point.ttft_loaded_s.mid,
            "output_tokens_per_s": point.output_tokens_per_s.mid,
            "per_gpu": (point.output_tokens_per_s.mid or 0.0) / found.deployment.num_gpus,
            "cost": found.output_cost(point),
            "within": _within(found.slo, round(point.batch_size)),
        }
        for point in found.curve
    ]
    how = found.provenance["latency.tpot_s"]
    priced = found.cost["per_hour"] is not None
    cost = Column("cost", f"{found.cost['currency']}/M tokens", "{:.3g}".format, "right", 1)
    return Table(
        name="curve",
        title=f"Throughput against latency, {loads(found, ' and ')} ({how}, not measured)",
        columns=(
            Column("batch_size", "At once", "{:,}".format, "right"),
            Column("tpot_s", "Per token", units.seconds, "right"),
            Column("tpot_high_s", "At most", units.seconds, "right", 1),
            Column("ttft_loaded_s", "First token", units.seconds, "right"),
            Column("output_tokens_per_s", "Output", rate, "right"),
            Column("per_gpu", "Of a GPU", rate, "right", 1),
            *([cost] if priced else []),
            *([Column("within", "Within limits")] if found.slo else []),
        ),
        rows=tuple(rows),
    )


def _within(slo: "Slo | None", batch: int) -> str | None:
    """Whether so many at once hold the limits; None where there are none."""
    if slo is None:
        return None
    if batch <= slo.safe_batch_size:
        return "safely"
    return "yes" if batch <= slo.max_batch_size else "no"


_STEP_TERMS = {
    "projections": "products with weights", "experts": "experts", "attention": "attention",
    "mixer": "recurrent mixers", "all_reduce": "sums over the ranks",
    "kernels": "norms and small kernels", "head": "head", "engine": "engine, on the host",
    "others": "reading the others' prompts",
}  # fmt: skip


def _step_table(found: "Estimate") -> Table:
    """What a token's and a prompt's time is made of, term by term: each column adds up."""
    step = found.step
    assert step is not None
    batch = f"{found.settings['batch_size']:,} at once"
    rows = [
        {
            "term": name,
            "token_s": token_s if found.writes_tokens else None,
            "share": token_s / step.token_s if found.writes_tokens else None,
            "prompt_s": prompt_s if term in step.prompt else None,
            "provenance": step.provenance.get(term),
        }
        for term, name in _STEP_TERMS.items()
        if (token_s := step.token.get(term, 0.0)) + (prompt_s := step.prompt.get(term, 0.0)) > 0
    ]
    rows.append(
        {
            "term": "sum", "token_s": step.token_s if found.writes_tokens else None,
            "share": 1.0 if found.writes_tokens else None, "prompt_s": step.prompt_s,
            "provenance": None,
        }
    )  # fmt: skip
    return Table(
        name="step",
        title="What a token and a prompt take (estimated by the law of a step)",
        columns=(
            Column("term", "Term"),
            Column("token_s", f"Token, {batch}", units.seconds, "right"),
            Column("share", "Share", units.percent, "right", 1),
            Column(
                "prompt_s",
                f"Prompt of {units.tokens(found.settings['prompt_len'])}",
                units.seconds,
                "right",
            ),
            Column("provenance", "Is", priority=1),
        ),
        rows=tuple(rows),
    )


def _alternatives_table(found: "Estimate") -> Table:
    return Table(
        name="alternatives",
        title="Each change tried alone",
        columns=(
            Column("change", "Change"),
            Column("fits", "Fits", lambda fits: "yes" if fits else "no"),
            Column("max_concurrency", "Sequences at once", _number, "right"),
            Column("gain", "Gain", lambda gain: f"{gain:.2f}x", "right"),
            Column("max_context_len", "Longest", units.tokens, "right", 1),
        ),
        rows=tuple(vars(tried) for tried in found.alternatives),
        notes=(OF_ALL_REPLICAS,) if found.deployment.dp > 1 else (),
    )


def audit_table(audit: "Audit") -> Table:
    """A log's terms beside their predictions, what is off first."""
    from attnprof.audit import CLOSE

    rows = [term.to_json() for term in audit.terms]
    rows.sort(key=lambda row: -abs(float(row["beyond_rounding"] or 0)))
    version = audit.log.settings.get("version", "of a version that the log does not say")
    notes = list(audit.notes)
    if audit.missing:
        notes.append(f"Not found in the log: {', '.join(audit.missing)}.")
    within = [term.term for term in audit.terms if term.is_within_rounding and term.difference]
    if within:
        notes.append(f"Off by no more than the log rounds: {', '.join(within)}.")
    notes.append(f"Off by most: {audit.off}." if audit.off else "No part of memory is off.")
    notes.extend(audit.log.outcomes)
    return Table(
        name="audit",
        title=f"Log of {audit.log.engine} {version}, {units.counted(audit.log.num_lines, 'line')}",
        columns=(
            Column("term", "Term"),
            Column("predicted", "Predicted", _number, "right"),
            Column("logged", "Logged", _number, "right"),
            Column("unit", "Unit"),
            Column("relative_error", "Error", _error, "right"),
            Column("given", "Predicted from", priority=1),
            Column(
                "within_rounding", "Rounding", lambda is_so: "within" if is_so else "", "left", 2
            ),
        ),
        rows=tuple(rows),
        notes=tuple(notes),
        alarming=lambda row: abs(float(row["beyond_rounding"] or 0)) > CLOSE,
    )


def validation_tables(validation: "Validation") -> list[Table]:
    """Serving cases line by line, what is outside first, and by engine and architecture."""
    rows = sorted(validation.rows, key=lambda row: not row.is_outside)
    lines = Table(
        name="serving_cases",
        title=f"{units.counted(len(rows), 'figure')} of serving cases",
        columns=(
            Column("id", "Case"),
            Column("term", "Term"),
            Column("predicted", "Predicted", _number, "right"),
            Column("reported", "Reported", _number, "right"),
            Column("relative_error", "Error", _error, "right"),
            Column("note", "Why", priority=1, wraps=True),
        ),
        rows=tuple(row.to_json() for row in rows),
        notes=tuple(f"Nothing to predict in {case}: {why}." for case, why in validation.skipped),
        alarming=lambda row: bool(row["outside"]),
    )
    columns = (
        Column("group", "Figures"),
        Column("engine_family", "Engine"),
        Column("architecture_kind", "Architecture"),
        Column("num_rows", "Number", str, "right"),
        Column("median_error", "Median error", units.percent, "right"),
        Column("worst_error", "Worst error", units.percent, "right"),
        Column("worst_id", "Worst case", priority=1),
    )
    strata = [*validation.summary(whole=True), *validation.summary()]
    summary = Table(
        name="serving_cases_summary",
        title="Errors by what, engine and architecture",
        columns=columns,
        rows=tuple(
            stratum.to_json()
            for stratum in sorted(strata, key=lambda s: (s.group, s.engine_family != "all"))
        ),
    )
    return [lines, summary]


FIGURES_ARE = (
    "Figures are: checked, held against a second source; partly, some of them were; recalled, "
    "written down from a datasheet or memory of it, and held against nothing. show gpus NAME says "
    "which source."
)


def gpus_table(gpus: "Sequence[Gpu]") -> Table:
    """Every GPU profile in a line."""
    return Table(
        name="gpus",
        title=units.counted(len(gpus), "GPU"),
        columns=(
            Column("name", "Name"),
            Column("memory_bytes", "Memory", units.capacity, "right"),
            Column("bandwidth", "Bandwidth", lambda v: units.rate(v, "B/s"), "right"),
            Column("bfloat16", "bf16", lambda v: units.rate(v, "FLOP/s"), "right", 1),
            Column("float8", "fp8", lambda v: units.rate(v, "FLOP/s"), "right", 1),
            Column("link", "Link, each way", lambda v: units.rate(v, "B/s"), "right", 2),
            Column("power_w", "Power", lambda v: f"{v:g} W", "right", 2),
            Column("verified", "Figures are", priority=1),
        ),
        rows=tuple(
            {
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
                "bandwidth": gpu.memory_bandwidth_bytes_per_s,
                "bfloat16": gpu.peak_flops_per_s("bfloat16"),
                "float8": gpu.peak_flops_per_s("float8_e4m3fn"),
                "link": gpu.link_bytes_per_s,
                "power_w": gpu.power_w,
                "verified": gpu.verified,
            }
            for gpu in gpus
        ),
        notes=(FIGURES_ARE,),
    )


def gpu_table(gpu: "Gpu") -> Table:
    """One GPU, key by key."""
    visible = "assumed from others" if gpu.visible_is_assumed else "as engines log it"
    rows: list[tuple[str, str, str]] = [
        ("memory", units.capacity(gpu.memory_bytes), gpu.memory_basis),
        ("memory that programs see", units.capacity(gpu.visible_memory_bytes), visible),
        ("memory bandwidth", units.rate(gpu.memory_bandwidth_bytes_per_s, "B/s"), ""),
        *(
            (f"dense peak in {dtype}", units.rate(peak, "FLOP/s"), "")
            for dtype, peak in gpu.dense_flops_per_s.items()
        ),
        ("compute units", _or_unknown(gpu.num_compute_units), ""),
        ("L2 cache", units.capacity(gpu.l2_bytes), ""),
        ("link, each way", units.rate(gpu.link_bytes_per_s, "B/s"), gpu.link or "none"),
        ("power", "–" if gpu.power_w is None else f"{gpu.power_w:g} W", ""),
        ("also called", ", ".join((*gpu.aliases, *gpu.matches)), ""),
        ("file", str(gpu.path), ""),
    ]
    return _key_table("gpu", gpu.title, rows, (f"{gpu.verified}: {gpu.source}", FIGURES_ARE))


def engines_table(engines: "Sequence[EngineProfile]") -> Table:
    """Every engine profile in a line."""
    return Table(
        name="engines",
        title=units.counted(len(engines), "engine"),
        columns=(
            Column("name", "Name"),
            Column("title", "Engine"),
            Column("version", "Version assumed"),
        ),
        rows=tuple(
            {key: getattr(engine, key) for key in ("name", "title", "version")}
            for engine in engines
        ),
        notes=(
            "attnprof show engines NAME, or NAME@VERSION, says what is assumed and its source.",
        ),
    )


def engine_table(engine: "EngineProfile") -> Table:
    """One engine at one version: each constant and the release that brought it."""
    rows = [
        (key, str(value), engine.sources.get(key, "")) for key, value in engine.constants.items()
    ]
    rows += [
        (f"audited {key}", str(value), "a log")
        for key, value in vars(engine.overheads).items()
        if value is not None
    ]
    return _key_table("engine", f"{engine.title} {engine.version}", rows, (engine.source,))


def _or_unknown(value: object) -> str:
    return "–" if value is None else str(value)


def _key_table(
    name: str, title: str, rows: list[tuple[str, str, str]], notes: tuple[str, ...]
) -> Table:
    return Table(
        name=name,
        title=title,
        columns=(
            Column("key", "What"),
            Column("value", "Value", wraps=True),
            Column("basis", "Basis", priority=1, wraps=True),
        ),
        rows=tuple({"key": key, "value": value, "basis": basis} for key, value, basis in rows),
        notes=notes,
    )
