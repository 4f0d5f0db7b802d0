"""How attention is told where its tokens are: every scheme by name, and where it acts."""

from dataclasses import dataclass
from typing import Literal

Acts = Literal["nowhere", "embeddings", "scores", "rotation"]


@dataclass(frozen=True)
class PositionScheme:
    """A scheme, where it acts, and who published it.

    ``embeddings`` is added to what a layer is given, ``scores`` to what the softmax is taken of,
    ``rotation`` turns queries and keys before they meet.
    """

    name: str
    acts: Acts
    summary: str
    source: str = ""


POSITIONS = {
    scheme.name: scheme
    for scheme in (
        PositionScheme("none", "nowhere", "no position at all"),
        PositionScheme(
            "sinusoidal", "embeddings", "sines and cosines of fixed frequencies",
            "Vaswani et al. 2017, arXiv:1706.03762, section 3.5",
        ),
        PositionScheme(
            "learned", "embeddings", "a trained vector a position",
            "Gehring et al. 2017, arXiv:1705.03122, section 3.1",
        ),
        PositionScheme(
            "shaw", "scores", "a trained key a clipped distance, met by the query",
            "Shaw et al. 2018, arXiv:1803.02155, section 3.2",
        ),
        PositionScheme(
            "t5", "scores", "a trained bias a head and bucket of distances",
            "Raffel et al. 2020, arXiv:1910.10683, section 2.1",
        ),
        PositionScheme(
            "alibi", "scores", "a slope a head times the distance",
            "Press et al. 2022, arXiv:2108.12409, section 3",
        ),
        PositionScheme(
            "rope", "rotation", "pairs of elements turned by angles in proportion to the position",
            "Su et al. 2021, arXiv:2104.09864, section 3.2",
        ),
        PositionScheme(
            "rope-partial", "rotation", "RoPE on the first quarter of each head's elements",
            "Black et al. 2022, GPT-NeoX-20B, arXiv:2204.06745, section 2.1",
        ),
        PositionScheme(
            "rope-linear", "rotation", "RoPE with positions divided by a factor",
            "Chen et al. 2023, arXiv:2306.15595, section 2.3",
        ),
        PositionScheme(
            "rope-dynamic", "rotation", "RoPE whose base grows with the length (dynamic NTK)",
            "Peng et al. 2023, YaRN, arXiv:2309.00071, section 3.3",
        ),
        PositionScheme(
            "rope-yarn", "rotation", "RoPE scaled by parts of its spectrum, and a temperature",
            "Peng et al. 2023, YaRN, arXiv:2309.00071, section 3.4",
        ),
        PositionScheme(
            "rope-llama3", "rotation", "RoPE with long wavelengths stretched, as in Llama 3.1",
            "Grattafiori et al. 2024, arXiv:2407.21783, section 3.4",
        ),
    )
}  # fmt: skip
ROTARY_SHARE = {"rope-partial": 0.25}
"""Of a head's elements that are turned; all where it is not said."""
SHAW_CLIP = 16
"""Distance from which on Shaw's keys are one: 16 in section 4.1."""
T5_BUCKETS = 32
T5_MAX_DISTANCE = 128
"""Distance from which on T5's bucket is the last."""
