"""The functions of ``import attnprof``: what is asked -> a typed result that shows itself."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.arguments import takes_its_types
from attnprof.axes import axis_named, axis_names
from attnprof.capacity.request import EstimateRequest
from attnprof.drawn import Drawn, Result, drawn
from attnprof.errors import CannotMeasureError, UsageError, nearest
from attnprof.estimate import Estimate
from attnprof.files import write_whole
from attnprof.fit_laws import RunFit
from attnprof.records import Run
from attnprof.render import Table
from attnprof.units import counted, parse_seconds, parse_tokens

if TYPE_CHECKING:
    import pandas as pd

PathLike = str | Path
OF_SEVERAL = "attnprof.estimate_grid compares several"


@dataclass(frozen=True, repr=False)
class SweepResult(Result, Run):
    """A run directory as it was read: its records, its tables, its frame."""

    def tables(self) -> list[Table]:
        """Those of ``attnprof report``."""
        from attnprof.report import run_tables

        return run_tables(self.path)

    def frame(self) -> "pd.DataFrame":
        """A row a workload, as :func:`read_run` gives."""
        return read_run(self)

    def figures(self) -> dict[str, Drawn]:
        """Those of ``attnprof report --figures``, by name."""
        from attnprof.figures.of_run import run_figures
        from attnprof.fit import fit_run

        made = run_figures(self.header, self.records, fit_run(self.header, self.records))
        return {one.name: drawn(one, "") for one in made}

    def figure(self, name: str | None = None) -> Drawn:
        """One of :meth:`figures`; the first where none is named.

        Raises:
            UsageError: None is called so.
            CannotMeasureError: There are none of this run.
        """
        made = self.figures()
        if not made:
            raise CannotMeasureError("there is nothing to draw", "measure several lengths")
        if name is not None and name not in made:
            raise UsageError(f"no figure of this run is called {name!r}", nearest(name, [*made]))
        return made[next(iter(made)) if name is None else name]

    def __repr__(self) -> str:
        num_ok = sum(record["status"] == "ok" for record in self.records)
        return f"<{counted(num_ok, 'workload')} measured in {self.path}>"


@dataclass(frozen=True, repr=False)
class EstimateResult(Result, Estimate):
    """What a deployment needs, holds, costs and how fast it is; see ``attnprof estimate``.

    Times and rates are intervals (``ttft_s.mid``), sizes bytes, an unknown number None; ``plan``
    is the memory of one GPU. :meth:`to_json` is the document of ``--format json``.
    """

    def tables(self) -> list[Table]:
        """Those of ``attnprof estimate``."""
        from attnprof.capacity_tables import estimate_tables

        return estimate_tables(self)

    def figure(self) -> Drawn:
        """Throughput against latency, the limits drawn in.

        Raises:
            CannotMeasureError: It does not fit, or its latency is unknown.
        """
        from attnprof.figures.serving import serving_figure

        return drawn(serving_figure(self.to_json()), "it does not fit, or its latency is unknown")

    def __repr__(self) -> str:
        from attnprof.estimate_words import served_words

        deployment = self.deployment
        verb = "fits" if self.plan.fits else "does not fit"
        if self.plan.fits and self.num_served is not None:
            verb += f", serves {served_words(self)},"
        return f"<{deployment.model.name} {verb} on {deployment.num_gpus} x {self.gpu.title}>"


@dataclass(frozen=True, repr=False)
class FitResult(Result, RunFit):
    """The laws of a device, what they miss where they were held out, and their calibration."""

    @property
    def is_yes(self) -> bool:
        """Whether every law holds on what was held out."""
        return all(group.holds for group in self.groups)

    def save(self, path: PathLike) -> Path:
        """Write the calibration, which ``estimate(..., calibration=path)`` reads."""
        from attnprof.laws.calibration import calibration_text

        to = Path(path)
        write_whole(to, calibration_text(self.calibration), "give another file")
        return to

    def tables(self) -> list[Table]:
        """Those of ``attnprof fit``."""
        from attnprof.law_tables import fit_tables

        return fit_tables(self)

    def __repr__(self) -> str:
        return f"<{counted(len(self.groups), 'law')} of {self.calibration.device}>"


@takes_its_types()
def sweep(
    spec: PathLike | None = None,
    *,
    output: PathLike | None = None,
    device: str = "auto",
    threads: int | None = None,
    budget: float | str | None = None,
    interval: float | None = None,
    seed: int = 0,
    resume: bool = False,
    for_fit: bool = False,
    energy: bool = False,
    quiet: bool = False,
    **axes: Any,
) -> SweepResult:
    """Measure attention over a grid, as ``attnprof sweep`` does, and read what was measured.

    Args:
        spec: A sweep by name (``quick``) or a YAML file; left out, the axes alone, else ``quick``.
        output: The run directory to write; a new one in ``attnprof-runs`` where left out.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ..., ``synthetic?noise=0.02``.
        threads: Of a CPU; as many as can run at once where left out.
        budget: Stop after this long: seconds, or ``"5m"``.
        interval: Half-width of the median's 95 % interval to reach: 0.02.
        seed: Of the inputs and of the order.
        resume: Go on with ``output``, or with the newest unfinished run.
        for_fit: Choose lengths and batches that pin a law down.
        energy: Joules of a call too, where a meter exists.
        quiet: Nothing on standard error while it runs.
        axes: By name, a value, a list or a range as on the command line:
            ``seq_len="512..8k*2", backend=["flash", "eager"]``.

    Raises:
        UsageError: The sweep, an axis or the folder makes no sense.
        CannotMeasureError: torch or the device is missing, or nothing was measured.
        KeyboardInterrupt: It was interrupted; what was measured is kept for ``resume``.
    """
    from attnprof import adaptive, session
    from attnprof.progress import PlainWatcher, SilentWatcher

    named = {_axis(name): values for name, values in axes.items()}
    asked = session.Asked(
        spec=None if spec is None else str(spec),
        axes=named,
        device=device,
        threads=threads,
        output=None if output is None else Path(output),
        resume=resume,
        budget_s=_seconds(budget),
        interval=interval,
        seed=seed,
        energy=energy,
        for_fit=for_fit,
        command=_command(spec, named, device),
    )
    plan = session.plan(asked)
    watch = SilentWatcher(sys.stderr) if quiet else PlainWatcher(sys.stderr)
    outcome = (session.run if plan.limits is None else adaptive.run)(plan, watch)
    if outcome.interrupted:
        raise KeyboardInterrupt(session.closing_words(outcome))
    if not outcome.any_ok:
        reasons = [str(record["reason"]) for record in outcome.records if record.get("reason")]
        raise CannotMeasureError(
            f"nothing was measured: {reasons[0] if reasons else 'the budget was spent before'}",
            f"see attnprof report {outcome.run_dir}",
        )
    return _run_at(outcome.run_dir)


@takes_its_types()
def read_run(run: PathLike | SweepResult) -> "pd.DataFrame":
    """A run as a pandas frame: a row a workload, the columns of ``results.csv``, each typed.

    The frame's ``attrs`` say what was run (``command``), on what (``device``) and when.

    Args:
        run: The directory of a sweep or of an import, or what :func:`sweep` gave.

    Raises:
        UsageError: No run there.
        CannotMeasureError: pandas is not installed.
    """
    from attnprof.frames import read_frame

    return read_frame(path_of(run))


@takes_its_types()
def fit(*runs: PathLike | SweepResult) -> FitResult:
    """Fit laws of latency to measured records and hold some of them out, as ``attnprof fit`` does.

    Args:
        runs: Directories of sweeps on one device, or what :func:`sweep` gave. A law needs lengths
            and batches that tell its terms apart: ``sweep(for_fit=True)`` chooses them.

    Raises:
        UsageError: No run, two devices, or too few points for any law.
    """
    from attnprof.fit_laws import fit_runs

    if not runs:
        raise UsageError("no run to fit laws to", "attnprof.fit('runs/mine')")
    return FitResult(**fields_of(fit_runs([path_of(run) for run in runs])))


@takes_its_types(of_lists=OF_SEVERAL)
def estimate(
    model: PathLike,
    gpu: str,
    *,
    gpus: int | None = None,
    engine: str = "vllm",
    tp: int | None = None,
    pp: int = 1,
    dp: int = 1,
    ep: bool = False,
    max_model_len: int | str | None = None,
    gpu_memory_utilization: float | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_dtype: str = "auto",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    block_size: int | None = None,
    enforce_eager: bool = False,
    enable_prefix_caching: bool | None = None,
    num_draft_tokens: int = 0,
    prompt_len: int | str | None = None,
    output_len: int | str | None = None,
    users: int | None = None,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    safely: bool = False,
    calibration: PathLike | None = None,
    price: float | str | None = None,
) -> EstimateResult:
    """Say what a deployment needs, holds and costs, as ``attnprof estimate`` does.

    Nothing is measured, and neither torch nor a GPU is needed. The arguments are the options of the
    command, each with one value: lengths are tokens or ``"32k"``, times seconds or ``"50ms"``.
    Several deployments are compared by :func:`estimate_grid`.

    >>> found = estimate("llama-3.1-8b", "h100-sxm", max_model_len="8k")
    >>> found.plan.fits, found.kv.bytes_per_token
    (True, 131072.0)

    Args:
        model: A profile's name, a ``config.json`` or its folder, a GGUF or safetensors file, or a
            hub id.
        gpu: By name: ``h100-sxm``; ``cpu`` is this machine.
        gpus: How many: tp · pp · dp.
        engine: ``vllm``, ``vllm@0.11``, ``sglang``, ...
        users: Sequences wanted at once.
        ttft: The longest accepted time to first token.
        tpot: The longest accepted time per output token.
        safely: Whether the upper ends of the intervals hold these limits, not their middles.
        calibration: Laws that the kernels follow, by name or file.
        price: Per GPU and hour: a number, or a list of prices by name.

    Raises:
        UsageError: A name that is none, or a size or share out of range.
    """
    from attnprof.estimate import estimate as estimated
    from attnprof.models.load import load_model

    _refuse_several(
        model=model, gpu=gpu, engine=engine, kv_dtype=kv_dtype, quantization=quantization
    )
    found = estimated(
        EstimateRequest(
            model=load_model(str(model)),
            gpu=gpu,
            engine=engine,
            num_gpus=gpus,
            tp=tp,
            pp=pp,
            dp=dp,
            expert_parallel=ep,
            max_model_len=_tokens(max_model_len),
            gpu_memory_utilization=gpu_memory_utilization,
            dtype=dtype,
            quantization=quantization,
            kv_dtype=kv_dtype,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            enforce_eager=enforce_eager,
            enable_prefix_caching=enable_prefix_caching,
            num_draft_tokens=num_draft_tokens,
            prompt_len=_tokens(prompt_len),
            output_len=_tokens(output_len),
            users=users,
            price=None if price is None else str(price),
            ttft_s=_seconds(ttft),
            tpot_s=_seconds(tpot),
            safely=safely,
            calibration=None if calibration is None else str(calibration),
        )
    )
    return EstimateResult(**fields_of(found))


def _axis(name: str) -> str:
    """The axis of a keyword argument.

    Raises:
        UsageError: It is neither an axis nor another argument of :func:`sweep`.
    """
    try:
        return axis_named(name).name
    except UsageError:
        others = [one for one in inspect.signature(sweep).parameters if one != "axes"]
        hint = nearest(name, [*others, *axis_names()], "attnprof show axes")
        raise UsageError(f"sweep has no argument or axis {name!r}", hint) from None


def _refuse_several(**given: object) -> None:
    """An estimate is of one deployment.

    Raises:
        UsageError: A text names several, as it may on the command line.
    """
    for name, value in given.items():
        if isinstance(value, str) and "," in value:
            raise UsageError(f"{name} is {value!r}: several deployments", OF_SEVERAL)


def _run_at(path: Path) -> SweepResult:
    from attnprof.records import read_run as read

    return SweepResult(**fields_of(read(path)))


def _command(spec: PathLike | None, axes: Mapping[str, Any], device: str) -> tuple[str, ...]:
    """What to type for the same grid."""
    words = ["attnprof", "sweep", *([] if spec is None else [str(spec)])]
    for name, values in axes.items():
        listed = values if isinstance(values, list | tuple) else [values]
        words += ["--axis", f"{name}={','.join(map(str, listed))}"]
    return (*words, "--device", device)


def path_of(run: PathLike | SweepResult) -> Path:
    """The folder of a run."""
    return run.path if isinstance(run, SweepResult) else Path(run)


def fields_of(found: Any) -> dict[str, Any]:
    """Of a dataclass, its fields as they are."""
    return {field.name: getattr(found, field.name) for field in fields(found)}


def _tokens(given: int | str | None) -> int | None:
    return parse_tokens(given) if isinstance(given, str) else given


def _seconds(given: float | str | None) -> float | None:
    return parse_seconds(given) if isinstance(given, str) else given
