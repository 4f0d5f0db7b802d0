"""Published serving results -> how far our TTFT, TPOT and throughput are from what was measured.

Every line is predicted from what it says was served and how it was loaded, never from a figure
that was measured; a line of which nothing can be predicted is counted, with the reason.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attnprof import units
from attnprof.errors import CannotMeasureError, UsageError
from attnprof.json_lines import read_json_lines
from attnprof.render import Column, Table
from attnprof.serving.coefficients import INTERVAL_SDS, StepProfile, step_profile
from attnprof.serving.load import Served, at_rate, batch_latency_s, serve
from attnprof.serving.own import OwnKernels, own_kernels
from attnprof.serving.record import Described, described, most_at_once
from attnprof.serving.step import StepModel

FORMAT = 1
MEDIAN_GOAL, P90_GOAL = 0.15, 0.45
TPOT, IDLE, LOADED, OUTPUT = "tpot", "ttft_idle", "ttft_loaded", "output_tokens_per_s"

ALL = frozenset({TPOT, IDLE, LOADED, OUTPUT})
FLAGS: Mapping[str, frozenset[str]] = {
    "throughput_derived_littles_law": frozenset({OUTPUT}),
    "throughput_counts_input_plus_output": frozenset({OUTPUT}),
    "littles_law_not_closed": ALL,
    "experimental_unofficial": ALL,
    "osl_below_nominal_eos": frozenset(),
    "tpot_reported_is_per_sse_event": frozenset({TPOT}),
    "osl_from_request_not_retokenised": frozenset({TPOT, OUTPUT}),
    "tpot_derived_from_e2e": frozenset({TPOT}),
    "reported_tpot_below_floor": frozenset({TPOT}),
    "prometheus_means": ALL,
    "output_shorter_than_trace": ALL,
    "isl_not_stated": ALL,
    "parallelism_in_submission_config": ALL,
    "prefix_cache_off": frozenset(),
    "no_rpc_frontend": frozenset(),
    "precision_inferred_from_memory_fit": frozenset(),
    "effectively_burst": frozenset({IDLE}),
    "short_run": ALL,
    "parallelism_first_listed": frozenset(),
    "prefill_anomalously_low": frozenset({IDLE, LOADED}),
}
"""The figures of a line that each flag speaks against; of a flag that is not known, all."""


@dataclass(frozen=True)
class PerfRow:
    """One figure of one line. Times are seconds; ``error`` is relative.

    Args:
        low: Of the interval that should hold the figure 80 % of the time.
        is_calibrated: Whether the GPU and the engine were in the fit of the coefficients.
        flags: Those of the line that speak against this figure.
        kind: ``aggregated`` or ``disaggregated``, and how requests arrived.
    """

    id: str
    set: str
    model: str
    gpu: str
    engine: str
    kind: str
    figure: str
    predicted: float
    low: float
    high: float
    measured: float
    is_calibrated: bool
    flags: str

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def is_within(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def counts_for_goal(self) -> bool:
        return (
            self.figure == TPOT and self.kind == "aggregated closed_loop"
            and self.is_calibrated and not self.flags
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "error": self.error, "within": self.is_within}


@dataclass(frozen=True)
class PerfValidation:
    """All figures, and the lines of which nothing could be predicted.

    ``notes`` say which of the user's own calibrations predictions follow.
    """

    rows: tuple[PerfRow, ...]
    skipped: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...] = ()

    def strata(self) -> list[dict[str, Any]]:
        """Errors by figure and kind, whole and by set, GPU, engine, calibration and flags."""
        found = []
        for figure, kind in sorted({(row.figure, row.kind) for row in self.rows}):
            rows = [row for row in self.rows if (row.figure, row.kind) == (figure, kind)]
            found.append(_stratum(figure, kind, "all", rows))
            for name, key in _SPLITS:
                for value in sorted({key(row) for row in rows}):
                    part = [row for row in rows if key(row) == value]
                    found.append(_stratum(figure, kind, f"{name} {value}".strip(), part))
        return found

    def goal(self) -> dict[str, Any] | None:
        """TPOT of unflagged aggregated closed-loop lines with a calibration; None without any."""
        rows = [row for row in self.rows if row.counts_for_goal]
        if not rows:
            return None
        stratum = _stratum(TPOT, "aggregated closed_loop", "goal: unflagged, calibrated", rows)
        met = stratum["median_error"] <= MEDIAN_GOAL and stratum["p90_error"] <= P90_GOAL
        return {**stratum, "median_goal": MEDIAN_GOAL, "p90_goal": P90_GOAL, "met": met}

    def reasons(self) -> Counter[str]:
        return Counter(why for _, _, why in self.skipped)

    def to_json(self) -> dict[str, Any]:
        """The document of ``validate serving-perf --format json``, format 1."""
        return {
            "format": FORMAT,
            "rows": [row.to_json() for row in self.rows],
            "skipped": [{"id": one, "set": of, "why": why} for one, of, why in self.skipped],
            "strata": self.strata(),
            "goal": self.goal(),
            "notes": list(self.notes),
        }

    def tables(self) -> list[Table]:
        """Figure by figure, the worst first, then the errors by stratum."""
        return [self._lines_table(), self._strata_table()]

    def _lines_table(self) -> Table:
        rows = sorted(self.rows, key=lambda row: (row.figure, row.kind, -abs(row.error)))
        return Table(
            name="serving_perf",
            title=f"{units.counted(len(rows), 'figure')} of published serving results",
            columns=(
                Column("id", "Line"),
                Column("model", "Model", priority=1),
                Column("gpu", "GPU", priority=1),
                Column("engine", "Engine", priority=1),
                Column("kind", "Load", _load_words, priority=1),
                Column("figure", "Figure", _figure_words),
                Column("shown_predicted", "Predicted", align="right"),
                Column("shown_low", "Low", align="right", priority=2),
                Column("shown_high", "High", align="right", priority=2),
                Column("shown_measured", "Measured", align="right"),
                Column("error", "Error", "{:+.0%}".format, "right"),
                Column("flags", "Spoken against by", priority=3),
            ),
            rows=tuple(_shown(row) for row in rows),
            notes=tuple(
                f"Not predicted: {units.counted(count, 'line')}, {why}."
                for why, count in self.reasons().items()
            ),
            alarming=lambda row: not row["flags"] and abs(row["error"]) > P90_GOAL,
        )

    def _strata_table(self) -> Table:
        goal = self.goal()
        rows = ([goal] if goal else []) + self.strata()
        notes = [
            f"Not predicted: {units.counted(count, 'line')}, {why}."
            for why, count in self.reasons().items()
        ]
        notes += self.notes
        if goal:
            notes.append(
                f"Goal of TPOT, median {MEDIAN_GOAL:.0%} and 90 % below {P90_GOAL:.0%}: "
                + ("met." if goal["met"] else "not met.")
            )
        notes.append(
            "split: prompts are read by workers of their own. "
            "ttft_idle is that of a lone request, ttft_loaded the mean while others are served."
        )
        return Table(
            name="serving_perf_errors",
            title="Errors by figure, load and what: the median, and what 90 % are below",
            columns=(
                Column("figure", "Figure", _figure_words),
                Column("kind", "Load", _load_words),
                Column("of", "Of", wraps=True),
                Column("num_rows", "Lines", str, "right"),
                Column("median_error", "Median", units.percent, "right"),
                Column("p90_error", "90 %", units.percent, "right"),
                Column("bias", "Median, signed", "{:+.0%}".format, "right", 1),
                Column("share_within", "Within interval", units.percent, "right", 1),
            ),
            rows=tuple(rows),
            notes=tuple(notes),
            alarming=lambda row: row.get("met") is False,
        )


_SPLITS = (
    ("set", lambda row: row.set),
    ("GPU", lambda row: row.gpu),
    ("engine", lambda row: row.engine),
    ("", lambda row: "calibrated" if row.is_calibrated else "assumed"),
    ("", lambda row: "flagged" if row.flags else "unflagged"),
)


def _figure_words(figure: str) -> str:
    return "output" if figure == OUTPUT else figure


def _load_words(kind: str) -> str:
    """A load as a narrow table has room for it.

    >>> _load_words("aggregated closed_loop"), _load_words("disaggregated poisson")
    ('closed loop', 'poisson, split')
    """
    topology, _, arrival = kind.partition(" ")
    split = ", split" if topology == "disaggregated" else ""
    return arrival.replace("_", " ") + split


def _shown(row: PerfRow) -> dict[str, Any]:
    form = (lambda v: f"{v:,.0f}/s") if row.figure == OUTPUT else units.seconds
    return {
        **row.to_json(),
        **{f"shown_{key}": form(getattr(row, key))
           for key in ("predicted", "low", "high", "measured")},
    }  # fmt: skip


def _stratum(figure: str, kind: str, of: str, rows: Sequence[PerfRow]) -> dict[str, Any]:
    errors = sorted(abs(row.error) for row in rows)
    return {
        "figure": figure,
        "kind": kind,
        "of": of,
        "num_rows": len(rows),
        "median_error": statistics.median(errors),
        "p90_error": percentile(errors, 0.9),
        "bias": statistics.median(row.error for row in rows),
        "share_within": sum(row.is_within for row in rows) / len(rows),
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ordered values lie, between neighbours in proportion.

    >>> percentile([0.0, 1.0, 2.0], 0.75)
    1.5
    """
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def validate_serving_perf(path: Path) -> PerfValidation:
    """Predict every line of a file of serving results, and hold it against what was measured.

    Raises:
        UsageError: The file is unreadable, or a line lacks what makes it a serving result.
        CannotMeasureError: Nothing of any line can be predicted; the reasons are named.
    """
    profile = step_profile()
    rows: list[PerfRow] = []
    skipped: list[tuple[str, str, str]] = []
    own: dict[str, OwnKernels] = {}
    for number, line in read_json_lines(path, "serving result"):
        _check(line, f"{path}, line {number}")
        name, of = str(line["id"]), str(line.get("set", ""))
        try:
            case = described(line)
            found = list(_figures(line, case, profile, own))
        except UsageError as error:
            skipped.append((name, of, error.problem))
            continue
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            skipped.append((name, of, f"makes no sense: {type(error).__name__}: {error}"))
            continue
        if not found:
            skipped.append((name, of, "no figure that a steady load has"))
        rows += found
    if not rows and not skipped:
        raise UsageError(f"{path} holds no serving result", "give a JSON Lines file of them")
    validation = PerfValidation(tuple(rows), tuple(skipped), tuple(_own_words(own)))
    if not rows:
        counts = validation.reasons().most_common()
        reasons = "; ".join(f"{why} ({count:,})" for why, count in counts)
        raise CannotMeasureError(
            f"nothing in {path} can be predicted: {reasons:.500}",
            "give results of a model, GPU and engine that attnprof show lists",
        )
    return validation


def _check(line: Mapping[str, Any], where: str) -> None:
    for key in ("id", "model", "gpu", "num_gpus", "engine", "workload", "measured"):
        if key not in line:
            raise UsageError(f"{where}: {key} is missing", f"add {key!r}")
    for key in ("workload", "measured"):
        if not isinstance(line[key], dict):
            raise UsageError(f"{where}: {key} is {line[key]!r:.80}", "write a mapping")
    for key in ("num_gpus", "tp", "pp"):
        count = line.get(key)
        if count is None and key != "num_gpus":
            continue
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"{where}: {key} is {count!r:.80}", "write a whole number from 1 up")
    if not isinstance(line.get("flags", []), list):
        raise UsageError(f"{where}: flags is {line['flags']!r:.80}", "write a list")


def _own_words(own: Mapping[str, OwnKernels]) -> list[str]:
    words = [
        f"Kernels of {gpu} follow the calibration {' and '.join(kernels.names)}."
        for gpu, kernels in own.items()
        if kernels.names
    ]
    return words + sorted({note for kernels in own.values() for note in kernels.notes})


def _figures(
    line: Mapping[str, Any], case: Described, profile: StepProfile, own_of: dict[str, OwnKernels]
) -> Iterable[PerfRow]:
    """The figures of a line that are both measured and predicted.

    Args:
        own_of: What the user's own calibrations say of each GPU, kept for the next line.
    """
    arrival = str(line["workload"].get("arrival", "closed_loop"))
    gpu = case.deployment.gpu
    assert gpu is not None
    if gpu.name not in own_of:
        own_of[gpu.name] = own_kernels(gpu)
    own = own_of[gpu.name]
    model = StepModel(case.deployment, profile.values_on(gpu.name, own))
    had = profile.provenance(case.deployment, own)
    flags = [str(flag) for flag in line.get("flags") or ()]
    for figure, value, seen in _pairs(line, case, model, arrival):
        sd = profile.log_sd(case.deployment, seen.decode, own)
        if figure in (IDLE, LOADED):
            sd = math.hypot(sd, profile.ttft_log_sd)
        factor = math.exp(INTERVAL_SDS * sd)
        low, high = value / factor, value * factor
        truth = _measured(figure, line)
        if truth is None or truth <= 0:
            continue
        yield PerfRow(
            id=str(line["id"]),
            set=str(line.get("set", "")),
            model=case.deployment.model.name,
            gpu=gpu.name,
            engine=case.deployment.engine.name,
            kind=f"{'disaggregated' if case.topology else 'aggregated'} {arrival}",
            figure=figure,
            predicted=value,
            low=low,
            high=high,
            measured=truth,
            is_calibrated=all(one == "calibrated" for one in had.values()),
            flags=" ".join(flag for flag in flags if figure in FLAGS.get(flag, ALL)),
        )


def _measured(figure: str, line: Mapping[str, Any]) -> float | None:
    """A figure as a line has it, the mean before the median. [s], of output [tokens/s]"""
    measured = line["measured"]
    if figure == OUTPUT:
        value = measured.get("output_tok_s") or measured.get("output_tok_s_est")
        if not value and measured.get("batch_latency_s"):
            workload = line["workload"]
            value = workload["concurrency"] * workload["osl_mean"] / measured["batch_latency_s"]
        return float(value) if value else None
    name = "tpot" if figure == TPOT else "ttft"
    keys = [f"{name}_ms_mean", f"{name}_ms_p50"]
    keys += ["itl_ms_mean", "itl_ms_p50"] if figure == TPOT else []
    value = next((measured[key] for key in keys if measured.get(key)), None)
    return float(value) / 1e3 if value else None


def _pairs(
    line: Mapping[str, Any], case: Described, model: StepModel, arrival: str
) -> Iterable[tuple[str, float, Served]]:
    """Figures that can be predicted of a line, with the service they come from."""
    load = case.load
    if arrival == "offline_batch":
        yield from _offline(line, case, model)
        return
    if arrival in ("poisson", "constant"):
        rate = line["workload"].get("request_rate")
        if not rate:
            raise UsageError("rate of arrival not stated", "add request_rate")
        most = min(most_at_once(case.deployment), _most_seqs(line))
        load = replace(load, concurrency=at_rate(model, load, float(rate), most))
        if load.concurrency >= most:
            raise UsageError("more requests come than can be served", "see its queue instead")
    seen = serve(model, load)
    if case.topology is not None:
        yield TPOT, seen.decode.total_s, seen
        return
    if load.output_len:
        yield TPOT, seen.tpot_s, seen
        if arrival == "closed_loop":
            yield OUTPUT, seen.output_tokens_per_s, seen
    if load.concurrency <= 1:
        yield IDLE, seen.ttft_idle_s, seen
    elif arrival != "closed_loop":
        yield LOADED, seen.ttft_next_s, seen
    else:
        yield LOADED, seen.ttft_loaded_s, seen


def _most_seqs(line: Mapping[str, Any]) -> float:
    return float((line.get("engine_args") or {}).get("max_num_seqs") or 256)


def _offline(
    line: Mapping[str, Any], case: Described, model: StepModel
) -> Iterable[tuple[str, float, Served]]:
    """All requests at once: a batch where its size is stated, else as many as are held."""
    load, workload = case.load, line["workload"]
    if workload.get("concurrency"):
        seconds = batch_latency_s(model, load)
        written = load.concurrency * load.output_len / seconds
        yield OUTPUT, written, serve(model, load)
        return
    held = most_at_once(case.deployment)
    batch = min(held, workload.get("num_requests") or held, _most_seqs(line) * case.deployment.dp)
    seen = serve(model, replace(load, concurrency=batch))
    yield OUTPUT, batch / seen.tpot_s, seen
