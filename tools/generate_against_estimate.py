"""The Transformers library generating on this CPU, held against what ``estimate`` says of it.

    attnprof calibrate --device cpu
    python tools/generate_against_estimate.py smollm2-135m gpt2 --prompt-len 64 256 --batch 1 4

The estimate is made before anything runs. Weights are random: a time does not depend on them.
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from attnprof.capacity.request import EstimateRequest
from attnprof.devices.environment import default_threads, worker_environment
from attnprof.estimate import Estimate, estimate
from attnprof.models.load import load_model, read_config

REPEATS = 3  # the least disturbed of which counts


@dataclass(frozen=True)
class Generated:
    """Times of one prompt and its answer. [s]"""

    ttft_s: float
    tpot_s: float


def main() -> None:
    asked = _asked()
    os.environ.update(worker_environment(asked.threads, "pinned"))  # before torch is imported
    _tell(
        "model            batch  prompt   TTFT said  measured    off   TPOT said  measured    off"
    )
    worst = 0.0
    for name in asked.models:
        for batch in asked.batch:
            for prompt_len in asked.prompt_len:
                said = _said(name, batch, prompt_len, asked.output_len)
                worst = max(worst, _line(name, batch, prompt_len, said, asked))
    _tell(f"worst: {worst:.1%}")


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--prompt-len", type=int, nargs="+", default=[128])
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--threads", type=int, default=default_threads())
    return parser.parse_args()


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _said(name: str, batch: int, prompt_len: int, output_len: int) -> Estimate:
    return estimate(
        EstimateRequest(
            model=load_model(name), gpu="cpu", engine="torch", dtype="float32",
            prompt_len=prompt_len, output_len=output_len, users=batch,
        )
    )  # fmt: skip


def _line(
    name: str, batch: int, prompt_len: int, said: Estimate, asked: argparse.Namespace
) -> float:  # fmt: skip
    """Print both, and give the larger of the two errors."""
    found = _generated(name, batch, prompt_len, asked.output_len, asked.threads)
    ttft, tpot = said.ttft_loaded_s.mid, said.tpot_s.mid
    assert ttft is not None and tpot is not None
    errors = ttft / found.ttft_s - 1, tpot / found.tpot_s - 1
    _tell(
        f"{name:<16} {batch:>5} {prompt_len:>7}  {ttft * 1e3:7.1f} ms {found.ttft_s * 1e3:6.1f} ms "
        f"{errors[0]:+6.1%}  {tpot * 1e3:7.2f} ms {found.tpot_s * 1e3:6.2f} ms {errors[1]:+6.1%}"
    )
    return max(abs(error) for error in errors)


def _generated(
    name: str, batch: int, prompt_len: int, output_len: int, threads: int
) -> Generated:  # fmt: skip
    """What the library's own ``generate`` takes, greedily, to so many tokens."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    values, _ = read_config(name)
    kind = values.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **values)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    prompt = torch.randint(config.vocab_size, (batch, prompt_len))
    runs = []
    with torch.inference_mode():
        for _ in range(REPEATS + 1):
            ticks: list[float] = []
            started = time.perf_counter()
            model.generate(
                prompt, max_new_tokens=output_len, min_new_tokens=output_len, do_sample=False,
                pad_token_id=0, logits_processor=[_Ticks(ticks)],
            )  # fmt: skip
            ended = time.perf_counter()
            runs.append(_times(started, ticks, ended))
    runs = runs[1:]
    return Generated(min(one.ttft_s for one in runs), min(one.tpot_s for one in runs))


class _Ticks:
    """A processor of logits that notes when each step's logits have come."""

    def __init__(self, ticks: list[float]) -> None:
        self.ticks = ticks

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.ticks.append(time.perf_counter())
        return scores


def _times(started: float, ticks: list[float], ended: float) -> Generated:
    between = [b - a for a, b in zip(ticks, [*ticks[1:], ended], strict=True)]
    return Generated(ticks[0] - started, statistics.median(between[:-1]))


if __name__ == "__main__":
    main()
