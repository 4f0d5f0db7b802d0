"""The Transformers library's ``generate`` -> what it adds to the calls of a model."""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from attnprof.errors import UnsupportedError

NUM_TOKENS = 32
NUM_PROMPT = 32
VOCAB_SIZE = 512
REPEATS = 4  # the first of which warms up


def generate_overheads(device_type: str) -> dict[str, float]:
    """Seconds beside the model's own call: ``first_s`` of the first token, ``step_s`` of each next.

    Of a model so small that its calls take little: what is added (preparing inputs, choosing a
    token, asking whether to stop) does not depend on the model. By the CPU's clock where the work
    is the CPU's: one thread does it.

    Args:
        device_type: As torch names it: cpu, cuda.

    Raises:
        UnsupportedError: The library is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise UnsupportedError("transformers is not installed") from error
    clock = time.process_time if device_type == "cpu" else time.perf_counter
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "llama", hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=VOCAB_SIZE,
    )  # fmt: skip
    with torch.device(device_type):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        prompt = torch.randint(VOCAB_SIZE, (1, NUM_PROMPT))
    firsts, steps = [], []
    with torch.inference_mode():
        for _ in range(REPEATS):
            whole = _generated(model, prompt, clock)
            alone = _called(model, prompt, clock, transformers.DynamicCache(config=config))
            firsts.append(whole[0] - alone[0])
            steps.append(statistics.median(whole[1:]) - statistics.median(alone[1:]))
    return {
        "first_s": max(0.0, statistics.median(firsts[1:])),
        "step_s": max(0.0, statistics.median(steps[1:])),
    }


def _generated(model: Any, prompt: torch.Tensor, clock: Callable[[], float]) -> list[float]:
    """Seconds until the first token, and between the next, as ``generate`` gives them."""
    from transformers.generation.streamers import BaseStreamer

    came: list[float] = []

    class Ticks(BaseStreamer):  # type: ignore[misc]  # the library's classes are not typed
        def put(self, value: torch.Tensor) -> None:
            came.append(clock())

        def end(self) -> None:
            pass

    started = clock()
    model.generate(
        prompt, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False,
        streamer=Ticks(), pad_token_id=0,
    )  # fmt: skip
    answered = came[1:]  # the prompt comes first
    return [answered[0] - started, *(b - a for a, b in itertools.pairwise(answered))]


def _called(
    model: Any, prompt: torch.Tensor, clock: Callable[[], float], cache: Any
) -> list[float]:  # fmt: skip
    """Seconds of the same calls of the model alone."""
    taken, tokens = [], prompt
    for _ in range(NUM_TOKENS):
        started = clock()
        logits = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        tokens = logits[:, -1:].argmax(-1)
        taken.append(clock() - started)
    return taken
