"""``attnprof.estimate_grid``: many deployments -> a comparison of them that shows itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.arguments import takes_its_types
from attnprof.drawn import Drawn, Result, drawn
from attnprof.planning import Answer, EstimateFlags, answer_estimate
from attnprof.render import Table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class EstimateGrid(Result):
    """Deployments by what they hold, how fast they are and what they cost.

    Args:
        rows: One a deployment, as in ``rows`` of ``--format json``.
        skipped: What makes no sense together, each with its reason.
        is_yes: Whether one of them is within the limits, where there are any.
    """

    rows: tuple[dict[str, Any], ...]
    skipped: tuple[dict[str, str], ...]
    is_yes: bool
    answer: Answer = field(compare=False)
    flags: EstimateFlags

    def to_json(self) -> dict[str, Any]:
        """The document of ``attnprof estimate --format json`` with lists."""
        return self.answer.document

    def tables(self) -> list[Table]:
        """Those of ``attnprof estimate`` with lists."""
        return self.answer.tables

    def frame(self) -> "pd.DataFrame":
        """A row a deployment.

        Raises:
            CannotMeasureError: pandas is not installed.
        """
        from attnprof.frames import pandas

        return pandas().json_normalize(list(self.rows))

    def figure(self) -> Drawn:
        """Users against context on each deployment, and what binds.

        Raises:
            CannotMeasureError: None of them fits anywhere.
        """
        from attnprof.estimate_figures import estimate_figure

        return drawn(estimate_figure(self.flags, self.answer), "none of them fits anywhere")

    def __repr__(self) -> str:
        return f"<{len(self.rows)} deployments compared>"


@takes_its_types()
def estimate_grid(
    model: str | Path | Sequence[str | Path],
    gpu: str | Sequence[str],
    *,
    gpus: int | None = None,
    engine: str | Sequence[str] = "vllm",
    tp: int | str | Sequence[int] | None = None,
    max_model_len: int | str | Sequence[int | str] | None = None,
    gpu_memory_utilization: float | str | Sequence[float] | None = None,
    dtype: str | None = None,
    quantization: str | Sequence[str] | None = None,
    kv_dtype: str | Sequence[str] = "auto",
    max_num_seqs: int | str | Sequence[int] | None = None,
    prompt_len: int | str | None = None,
    output_len: int | str | None = None,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    safely: bool = False,
    price: float | str | None = None,
) -> EstimateGrid:
    """Compare deployments, as ``attnprof estimate`` does where options hold several values.

    >>> found = estimate_grid("llama-3.1-8b", ["l4", "l40s"], max_model_len=["8k", "32k"])
    >>> len(found.rows), found.rows[0]["gpu"]
    (4, 'l4')

    Args:
        model: One or several, as of :func:`estimate`; so are all that take a list, or a text with
            commas.
        gpu: ``["l4", "l40s"]``, or ``"l4,l40s"``.
        gpus: How many of each; or ``tp``.
        ttft: The longest accepted time to first token.
        tpot: The longest accepted time per output token.
        safely: Whether the upper ends of the intervals hold these limits, not their middles.
        price: Per GPU and hour: a number, or a list of prices by name.

    Raises:
        UsageError: A name that is none, or a size or share out of range.
    """
    flags = EstimateFlags(
        model=f"{_text(model)},",  # a comma makes a grid of a single one too
        gpu=str(_text(gpu)),
        num_gpus=gpus,
        engine=str(_text(engine)),
        tp=_text(tp),
        max_model_len=_text(max_model_len),
        gpu_memory_utilization=_text(gpu_memory_utilization),
        dtype=dtype,
        quantization=_text(quantization),
        kv_dtype=str(_text(kv_dtype)),
        max_num_seqs=_text(max_num_seqs),
        prompt_len=_text(prompt_len),
        output_len=_text(output_len),
        ttft=_seconds(ttft),
        tpot=_seconds(tpot),
        safely=safely,
        price=_text(price),
    )
    answer = answer_estimate(flags)
    document = answer.document
    return EstimateGrid(
        tuple(document["rows"]), tuple(document["skipped"]), answer.is_yes, answer, flags
    )


def _text(given: Any) -> str | None:
    """A value, or several, as an option takes them."""
    if given is None:
        return None
    return ",".join(map(str, given)) if isinstance(given, list | tuple) else str(given)


def _seconds(given: float | str | None) -> str | None:
    return f"{given!r}s" if isinstance(given, float | int) else given
