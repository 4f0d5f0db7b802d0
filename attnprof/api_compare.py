"""``attnprof.compare``: two runs -> a verdict a workload that shows itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnprof.api import PathLike, SweepResult, fields_of, path_of
from attnprof.arguments import takes_its_types
from attnprof.drawn import Drawn, Result, drawn
from attnprof.render import Table
from attnprof.verdicts.comparison import Comparison


@dataclass(frozen=True, repr=False)
class ComparisonResult(Result, Comparison):
    """What became of each workload from one run to another, and of the whole.

    :meth:`to_json` is the document of ``attnprof compare --format json``.
    """

    @property
    def is_yes(self) -> bool:
        """Whether nothing got worse, and that could be decided."""
        return self.exit_code == 0

    def tables(self) -> list[Table]:
        """Those of ``attnprof compare``."""
        from attnprof.verdicts.tables import comparison_tables

        return comparison_tables(self)

    def figure(self) -> Drawn:
        """New over base, each with its interval, those that need attention first.

        Raises:
            CannotMeasureError: No workload has a ratio.
        """
        from attnprof.figures.comparisons import comparison_figure

        return drawn(comparison_figure(self.to_json()), "no workload has a ratio")

    def __repr__(self) -> str:
        from attnprof.verdicts.tables import whole_words

        return f"<{whole_words(self)}>"


@takes_its_types()
def compare(
    base: PathLike | SweepResult,
    new: PathLike | SweepResult,
    *,
    metric: Sequence[str] | str | None = None,
    margin: float | str | None = None,
    thresholds: PathLike | None = None,
    allow_different: Sequence[str] | str = (),
    fail_on: Sequence[str] | str | None = None,
) -> ComparisonResult:
    """Say what got slower or bigger from one finished run to another, as ``attnprof compare`` does.

    Args:
        base: The run to hold against: its directory, or what :func:`sweep` gave.
        new: The run under test.
        metric: ``latency``, ``peak_memory``, ``kv_bytes``, or several of them; all.
        margin: A rise of latency that drift between the runs may make: 0.03, or ``"3%"``.
        thresholds: A YAML file of thresholds, known ones and limits.
        allow_different: What may differ, one or several: ``device``, ``driver``, ``torch``,
            ``threads``, ``clocks``, ``environment``.
        fail_on: Verdicts for which the whole fails.

    Raises:
        UsageError: A run that cannot be compared, or two that have nothing in common.
        CannotMeasureError: They were measured under other conditions.
    """
    from attnprof.verdicts.asking import asked_of, compare_runs

    asked = asked_of(
        None if thresholds is None else Path(thresholds),
        (allow_different,) if isinstance(allow_different, str) else tuple(allow_different),
        _listed(metric),
        _listed(fail_on),
        f"{100 * margin:g}%" if isinstance(margin, float | int) else margin,
    )
    return ComparisonResult(**fields_of(compare_runs(path_of(base), path_of(new), asked)))


def _listed(names: Sequence[str] | str | None) -> str | None:
    """Names as an option takes them."""
    return names if names is None or isinstance(names, str) else ",".join(names)
