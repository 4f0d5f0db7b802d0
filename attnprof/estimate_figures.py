"""The flags of an estimate and its answer -> a figure: throughput against latency of one
deployment, users against context of several."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnprof.errors import UsageError
from attnprof.models.load import load_model
from attnprof.planning import GRID_FLAGS, Answer, EstimateFlags, answer_estimate
from attnprof.units import parse_tokens

if TYPE_CHECKING:
    from attnprof.figures.base import Figure

MOST_ESTIMATES = 400
SHORTEST_CONTEXT, LONGEST_CONTEXT = 1024, 2**17  # the latter where a model does not say
_LONGEST_ANSWER = 256  # of a context of users who ask for no other


def estimate_figure(flags: EstimateFlags, answer: Answer) -> "Figure | None":
    """Of a grid the users by context on each deployment, of one deployment its serving curve.

    None where it does not fit or its latency is unknown; of a grid where nothing fits.

    Raises:
        UsageError: A grid of too many deployments.
    """
    from attnprof.figures.capacity import capacity_figure
    from attnprof.figures.serving import serving_figure

    if "rows" in answer.document:
        return capacity_figure(documents_by_context(flags))
    return serving_figure(answer.document)


def documents_by_context(flags: EstimateFlags) -> list[dict[str, Any]]:
    """An estimate of each deployment of a grid at each context, full of prompt and answer.

    Several contexts that were typed are those; else they double, as far as the model reads.

    Raises:
        UsageError: Too many, or none that makes sense.
    """
    asked = list(_deployments(flags))
    if len(asked) > MOST_ESTIMATES:
        raise UsageError(
            f"{len(asked):,} estimates would have to be made for the figure",
            f"keep it to {MOST_ESTIMATES}: name fewer values",
        )
    found: list[dict[str, Any]] = []
    refused: UsageError | None = None
    for one in asked:
        try:
            found.append(answer_estimate(one).document)
        except UsageError as error:  # a context beyond the model's, or an engine without the GPU
            refused = refused or error
    if not found and refused is not None:
        raise refused
    return found


def _deployments(flags: EstimateFlags) -> Iterator[EstimateFlags]:
    contexts = _typed(flags.max_model_len)
    typed = [parse_tokens(text) for text in contexts if text is not None]
    axes = [_typed(getattr(flags, name)) for name in GRID_FLAGS if name != "max_model_len"]
    names = [name for name in GRID_FLAGS if name != "max_model_len"]
    for values in itertools.product(*axes):
        model = load_model(str(values[names.index("model")]))
        for length in typed if len(typed) > 1 else _doublings(model.max_position_embeddings):
            output = parse_tokens(flags.output_len) if flags.output_len else _LONGEST_ANSWER
            output = min(output, length // 2)
            one: dict[str, Any] = dict(zip(names, values, strict=True))
            one |= {"max_model_len": str(length), "output_len": str(output)}
            yield replace(flags, **one, prompt_len=str(length - output))


def _doublings(longest: int | None) -> list[int]:
    """Contexts that double, as far as a model reads.

    >>> _doublings(4096), _doublings(40960)[-1]
    ([1024, 2048, 4096], 32768)
    """
    most = max(SHORTEST_CONTEXT, longest or LONGEST_CONTEXT)
    return [SHORTEST_CONTEXT << k for k in range((most // SHORTEST_CONTEXT).bit_length())]


def _typed(text: str | None) -> list[str | None]:
    """The values of a flag, or its default."""
    parts: list[str | None] = [part.strip() for part in (text or "").split(",") if part.strip()]
    return parts or [None]
