"""What the library's generate adds to the calls of a model, measured."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from attnprof.workloads.library_generate import generate_overheads

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]


@pytest.mark.filterwarnings("ignore")
def test_generate_adds_little_to_a_step_and_more_to_the_first() -> None:
    """Bounds that only a fault would leave: of whole calls of a large model, or none at all."""
    found = generate_overheads("cpu")
    assert set(found) == {"first_s", "step_s"}
    assert 0 <= found["step_s"] < 0.5
    assert 0 < found["first_s"] < 5
