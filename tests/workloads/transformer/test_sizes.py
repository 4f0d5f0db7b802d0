"""Models of the shipped profiles, built without memory, against what their descriptions count."""

import pytest

torch = pytest.importorskip("torch")

from attnprof.models import load_model  # noqa: E402
from attnprof.models.build_architecture import architecture_of  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.transformer.kernels import Kernels  # noqa: E402
from attnprof.workloads.transformer.model import Transformer  # noqa: E402

pytestmark = pytest.mark.torch

PROFILES = (
    "bert-base-uncased", "bert-large-uncased", "roberta-base", "t5-small", "t5-base",
    "flan-t5-xl", "bart-base", "bart-large", "gpt2", "gpt2-xl", "opt-125m", "opt-13b",
    "bloom-176b", "gpt-neox-20b", "falcon-7b", "falcon-40b", "llama-3.1-8b", "mistral-7b",
    "mixtral-8x7b", "qwen3-8b", "gemma-2-9b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3",
    "llama-4-scout-17b-16e",
)  # fmt: skip


@pytest.mark.parametrize("name", PROFILES)
def test_a_built_model_has_the_parameters_that_its_description_counts(name: str) -> None:
    """Towers are not built; BART's bias of logits and the biases that balance experts are buffers
    of the library's, and no parameters."""
    spec, architecture = load_model(name), architecture_of(name)
    with torch.device("meta"):
        workload = Workload(backend="eager", q_len=8, kv_len=8)
        model = Transformer(architecture, Kernels(workload, torch.device("cpu")))
    buffers = sum(
        weight.numel() for key, weight in model.named_parameters() if key.endswith("choice_bias")
    )
    if architecture.model_type == "bart":
        buffers += architecture.vocab_size
    built = sum(weight.numel() for weight in model.parameters())
    assert built - buffers == spec.num_params - spec.vision_params
