"""The command line of what plans, fits and validates -> a document and its tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attnprof.capacity.request import EstimateRequest
from attnprof.errors import UsageError
from attnprof.files import write_whole
from attnprof.models.load import load_model
from attnprof.render import Table
from attnprof.units import counted, parse_seconds, parse_tokens, plain_number

if TYPE_CHECKING:
    from attnprof.fit_laws import RunFit

VALIDATIONS = ("parameters", "serving-cases", "kernels", "serving-perf", "calibration")

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What a command found: tables for people, a versioned document for programs."""

    tables: list[Table]
    document: dict[str, Any]
    is_yes: bool = True
    why_not: str = ""
    """In a line why the answer is no."""


@dataclass(frozen=True, kw_only=True)
class EstimateFlags:
    """The flags of ``estimate`` as typed; lists in ``GRID_FLAGS`` make a grid."""

    model: str
    gpu: str
    engine: str = "vllm"
    tp: str | None = None
    max_model_len: str | None = None
    kv_dtype: str = "auto"
    quantization: str | None = None
    gpu_memory_utilization: str | None = None
    max_num_seqs: str | None = None
    num_gpus: int | None = None
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False
    dtype: str | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    num_draft_tokens: int = 0
    prompt_len: str | None = None
    output_len: str | None = None
    users: int | None = None
    price: str | None = None
    ttft: str | None = None
    tpot: str | None = None
    safely: bool = False
    calibration: str | None = None


GRID_FLAGS = (
    "model", "gpu", "engine", "tp", "max_model_len", "kv_dtype", "quantization",
    "gpu_memory_utilization", "max_num_seqs",
)  # fmt: skip


OFFER_FLAGS = ("num_gpus", "dtype", "prompt_len", "output_len", "price", "ttft", "tpot", "safely")
"""Flags that each combination of a grid is asked for alike."""


def answer_estimate(flags: EstimateFlags) -> Answer:
    """One deployment in depth, or a comparison where a flag holds several values.

    Raises:
        UsageError: A name that is none, a size out of range, or a flag that a grid has not.
    """
    if any("," in (getattr(flags, name) or "") for name in GRID_FLAGS):
        return _answer_grid(flags)
    from attnprof.capacity_tables import estimate_tables
    from attnprof.estimate import estimate
    from attnprof.estimate_words import why_not

    found = estimate(
        EstimateRequest(
            model=load_model(flags.model),
            gpu=flags.gpu,
            engine=flags.engine,
            num_gpus=flags.num_gpus,
            tp=_one(flags.tp, _whole("tp")),
            pp=flags.pp,
            dp=flags.dp,
            expert_parallel=flags.expert_parallel,
            max_model_len=_one(flags.max_model_len, parse_tokens),
            gpu_memory_utilization=_one(flags.gpu_memory_utilization, _share),
            dtype=flags.dtype,
            quantization=flags.quantization,
            kv_dtype=flags.kv_dtype,
            max_num_seqs=_one(flags.max_num_seqs, _whole("max_num_seqs")),
            max_num_batched_tokens=flags.max_num_batched_tokens,
            block_size=flags.block_size,
            enforce_eager=flags.enforce_eager,
            enable_prefix_caching=flags.enable_prefix_caching,
            num_draft_tokens=flags.num_draft_tokens,
            prompt_len=_one(flags.prompt_len, parse_tokens),
            output_len=_one(flags.output_len, parse_tokens),
            users=flags.users,
            price=flags.price,
            ttft_s=_one(flags.ttft, parse_seconds),
            tpot_s=_one(flags.tpot, parse_seconds),
            safely=flags.safely,
            calibration=flags.calibration,
        )
    )
    return Answer(
        estimate_tables(found), found.to_json(), is_yes=found.is_yes, why_not=why_not(found)
    )


def _answer_grid(flags: EstimateFlags) -> Answer:
    from attnprof.estimate_grid import (
        MAX_OFFERS,
        Asked,
        GridRequest,
        estimate_grid,
        grid_offers,
    )
    from attnprof.grid_tables import grid_rows, grid_table, within
    from attnprof.serving.offers import HOLDS

    for field in fields(flags):
        if field.name in (*GRID_FLAGS, *OFFER_FLAGS):
            continue
        if getattr(flags, field.name) != field.default:
            raise UsageError(
                f"--{field.name.replace('_', '-')} goes with a single deployment, not with lists",
                f"leave it out, or give one value to each of {', '.join(GRID_FLAGS)}",
            )
    if flags.num_gpus is not None and flags.tp is not None:
        raise UsageError("--gpus and --tp are both given with lists", "leave --gpus out")
    grid = estimate_grid(
        GridRequest(
            models=tuple(load_model(name) for name in _list(flags.model, str)),
            gpus=_list(flags.gpu, str),
            engines=_list(flags.engine, str),
            max_model_lens=_list(flags.max_model_len or "8k", parse_tokens),
            tps=_list(flags.tp or str(flags.num_gpus or 1), _whole("tp")),
            kv_dtypes=_list(flags.kv_dtype, str),
            quantizations=_list(flags.quantization, str) or (None,),
            utilizations=_list(flags.gpu_memory_utilization, _share) or (None,),
            max_num_seqs=_list(flags.max_num_seqs, _whole("max_num_seqs")) or (None,),
            dtype=flags.dtype,
        )
    )
    asked = Asked(
        prompt_len=_one(flags.prompt_len, parse_tokens),
        output_len=_one(flags.output_len, parse_tokens),
        ttft_s=_one(flags.ttft, parse_seconds),
        tpot_s=_one(flags.tpot, parse_seconds),
        price=flags.price,
        safely=flags.safely,
    )
    # Without a word on latency a grid may be of millions, whose memory alone is worked out.
    is_small = len(grid) <= MAX_OFFERS
    offers = grid_offers(grid, asked) if is_small or asked != Asked() else []
    skipped = [{"what": what, "reason": reason} for what, reason in grid.skipped]
    document = {"format": 1, "rows": grid_rows(grid, offers), "skipped": skipped}
    is_yes = not asked.limits.are_given or any(offer.verdict == HOLDS for offer in offers)
    why_not = "" if is_yes else f"no: none of {len(offers):,} combinations{within(asked)}"
    return Answer([grid_table(grid, offers, asked)], document, is_yes=is_yes, why_not=why_not)


def _list(text: str | None, parse: Callable[[str], T]) -> tuple[T, ...]:
    parts = [part.strip() for part in (text or "").split(",")]
    return tuple(parse(part) for part in parts if part)


def _one(text: str | None, parse: Callable[[str], T]) -> T | None:
    return None if text is None else parse(text.strip())


def _whole(name: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) < 1:
            raise UsageError(f"{name} is {text!r}", "write a whole number of at least 1")
        return int(text)

    return parse


def _share(text: str) -> float:
    share = plain_number(text)
    if share is None:
        raise UsageError(f"{text!r} is not a share", "write 0.9")
    return share


def answer_audit(
    content: bytes, where: str, *, model: str | None, gpu: str | None, engine: str | None,
    write: str | None,
) -> tuple[Answer, str]:  # fmt: skip
    """A start-up log against the estimate; the words say what was written, if anything.

    Raises:
        UsageError: No engine's log, a name that is none, or a profile that cannot be written.
    """
    from attnprof.audit import audit_log, write_profile
    from attnprof.capacity_tables import audit_table
    from attnprof.logs.lines import decode_log
    from attnprof.profiles import user_profile_dir

    spec = None if model is None else load_model(model)
    audit = audit_log(decode_log(content, where), model=spec, gpu=gpu, engine=engine)
    words = ""
    if write is not None:
        path = write_profile(audit, write, user_profile_dir())
        words = f"wrote {path}; use it with --engine {write}"
    return Answer([audit_table(audit)], audit.to_json()), words


def answer_fit(runs: Sequence[Path], output: Path | None) -> tuple[Answer, str]:
    """The laws of some runs and their calibration file; the words say where it lies.

    Raises:
        UsageError: No run, two devices, or too few points for any law.
    """
    from attnprof.fit_laws import fit_runs

    return _kept_fit(fit_runs(runs), output or runs[0] / "calibration.yaml")


def answer_calibration(run: Path) -> tuple[Answer, str]:
    """The laws of a run, kept in the user's own folder under the name of its device.

    Raises:
        UsageError: Too few points for any law, or a folder that cannot be written.
    """
    from attnprof.fit_laws import fit_runs
    from attnprof.laws.calibration import KIND
    from attnprof.profiles import user_profile_dir

    found = fit_runs([run])
    folder = user_profile_dir() / KIND
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror}", "set ATTNPROF_PROFILES to another folder"
        ) from None
    return _kept_fit(found, folder / f"{found.calibration.name}.yaml")


def _kept_fit(found: "RunFit", path: Path) -> tuple[Answer, str]:
    """Tables and document of a fit whose calibration is written to ``path``."""
    from attnprof.law_tables import fit_tables
    from attnprof.laws.calibration import calibration_text

    write_whole(path, calibration_text(found.calibration), "give --output another file")
    tables = fit_tables(found)
    document = {
        "format": 1,
        "calibration": str(path),
        **{table.name: [dict(row) for row in table.rows] for table in tables},
        "notes": list(found.notes),
        "used_once": list(found.used_once),
    }
    missed = [one.key for one in found.groups if not one.holds]
    words = f"wrote {path}"
    if missed:
        words += (
            f"\n{len(missed)} of {counted(len(found.groups), 'law')} "
            f"{'does' if len(missed) == 1 else 'do'} not hold on what was held out: "
            f"{', '.join(missed)}; measure more (a larger --budget) on a quieter machine"
        )
    return Answer(tables, document, is_yes=not missed), words


def answer_validation(
    kind: str, paths: Sequence[Path], calibration: str | None = None
) -> Answer:  # fmt: skip
    """Our predictions held against files of truth; of a calibration, against runs of its device.

    Raises:
        UsageError: No such kind, a file that is not of its format, or several where one goes.
        CannotMeasureError: Nothing in them can be predicted.
    """
    from attnprof.errors import nearest

    if kind not in VALIDATIONS:
        raise UsageError(f"nothing to validate as {kind!r}", nearest(kind, VALIDATIONS))
    if kind == "calibration":
        from attnprof.validate_calibration import validate_calibration

        calibrated = validate_calibration(paths, calibration)
        return Answer(calibrated.tables(), calibrated.to_json())
    if calibration is not None:
        raise UsageError(f"validate {kind} takes no calibration", "leave --calibration out")
    if kind == "kernels":
        from attnprof.validate_kernels import validate_kernels

        kernels = validate_kernels(paths)
        return Answer(kernels.tables(), kernels.to_json())
    if len(paths) > 1:
        raise UsageError(
            f"validate {kind} takes one file, not {len(paths)}", "give them one by one"
        )
    path = paths[0]
    if kind == "parameters":
        from attnprof.validate_parameters import to_json, validate_parameters

        rows = validate_parameters(path)
        return Answer([_parameters_table(rows)], to_json(rows))
    if kind == "serving-perf":
        from attnprof.validate_serving_perf import validate_serving_perf

        served = validate_serving_perf(path)
        return Answer(served.tables(), served.to_json())
    from attnprof.capacity_tables import validation_tables
    from attnprof.validate_cases import validate_serving_cases

    validation = validate_serving_cases(path)
    return Answer(validation_tables(validation), validation.to_json())


def _parameters_table(rows: Sequence[Any]) -> Table:
    from attnprof.render import Column

    exact = sum(not row.is_outside for row in rows)
    return Table(
        name="parameters",
        title=f"Parameters: {exact} of {len(rows)} counted exactly",
        columns=(
            Column("id", "Configuration"),
            Column("predicted", "Counted", "{:,}".format, "right"),
            Column("reported", "Reported", "{:,}".format, "right"),
            Column("relative_error", "Error", "{:+.4%}".format, "right"),
            Column("note", "Note", wraps=True, priority=1),
        ),
        rows=tuple(row.to_json() for row in sorted(rows, key=lambda row: not row.is_outside)),
        alarming=lambda row: bool(row["outside"]),
    )
