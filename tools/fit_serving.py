"""Published serving results -> profiles/serving/step.yaml: what only they can tell of a step.

    python tools/fit_serving.py ../shared/data/serving_perf_open.jsonl

A robust MAP fit in log TPOT around priors that are stated here, over unflagged aggregated
closed-loop lines, and its error on lines of models that were left out. ``--dry-run`` writes
nothing.
"""

import argparse
import math
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnprof.errors import UsageError
from attnprof.json_lines import read_json_lines
from attnprof.laws.calibration import read_calibration
from attnprof.profiles import profile_dir
from attnprof.serving.coefficients import INTERVAL_SDS
from attnprof.serving.load import serve
from attnprof.serving.own import KERNELS, kernels_of
from attnprof.serving.record import Described, described
from attnprof.serving.step import StepModel

# Median, standard deviation of the logarithm before the data, meaning.
PRIORS: dict[str, tuple[float, float, str]] = {
    "gemm_compute": (1.3, 0.2, "arithmetic of a product, over its time at peak"),
    "gemm_memory": (1.1, 0.1, "weights that a product reads, over their time at peak"),
    "experts_compute": (3.0, 0.4, "arithmetic of grouped experts, over its time at peak"),
    "experts_memory": (1.3, 0.25, "weights of the chosen experts, over their time at peak"),
    "decode_compute": (2.0, 0.4, "arithmetic of a decode's attention, over its time at peak"),
    "decode_memory": (1.2, 0.2, "cache that a decode reads, over its time at peak"),
    "prefill_compute": (1.6, 0.3, "arithmetic of a prefill's attention, over its time at peak"),
    "all_reduce_link": (1.8, 0.4, "traffic of a sum over the ranks, over its time at the link"),
    "launch": (3e-6, 0.4, "each product [s]"),
    "attention": (9e-6, 0.4, "each attention [s]"),
    "mixer": (20e-6, 0.5, "each recurrent mixer [s]"),
    "indexer": (40e-6, 0.6, "each indexer of sparse attention [s]"),
    "layer": (8e-6, 0.4, "small kernels of a layer [s]"),
    "all_reduce": (8e-6, 0.4, "each sum over the ranks [s]"),
    "sequence": (5e-6, 0.6, "each sequence, in sampling and scheduling [s]"),
    "imbalance": (0.6, 0.4, "share of the expected excess of the fullest rank of experts"),
    "unit_bytes_per_s.llama-cpp": (10e9, 0.2, "weights that one SM or core streams [bytes/s]"),
    "eager": (3.0, 0.0, "launches without graphs, over those with (assumed)"),
    "launches.vllm": (1.0, 0.15, "overheads of kernels, over those above"),
    "launches.sglang": (1.0, 0.15, "overheads of kernels, over those above"),
    "launches.tensorrt-llm": (0.8, 0.25, "overheads of kernels, over those above"),
    "launches.llama-cpp": (1.0, 0.3, "overheads of kernels, over those above"),
    "launches.other": (1.2, 0.0, "overheads of kernels, over those above (assumed)"),
    "step.vllm": (8e-4, 0.6, "each step, on the host [s]"),
    "step.sglang": (8e-4, 0.6, "each step, on the host [s]"),
    "step.tensorrt-llm": (5e-4, 0.6, "each step, on the host [s]"),
    "step.llama-cpp": (3e-4, 0.6, "each step, on the host [s]"),
    "step.other": (2e-3, 0.0, "each step, on the host (assumed) [s]"),
    "first.vllm": (1.0, 0.0, "first tokens of a burst, over the time of its prompts"),
    "first.sglang": (1.0, 0.0, "first tokens of a burst, over the time of its prompts"),
    "first.tensorrt-llm": (1.0, 0.0, "first tokens of a burst, over the time of its prompts"),
    "first.other": (3.0, 0.0, "first tokens of a burst, over the time of its prompts (assumed)"),
    "interference.vllm": (0.9, 0.2, "reading the others' prompts, over its expected time"),
    "interference.sglang": (0.9, 0.2, "reading the others' prompts, over its expected time"),
    "interference.tensorrt-llm": (0.9, 0.2, "reading the others' prompts, over its expected time"),
    "interference.llama-cpp": (
        0.9,
        0.0,
        "reading the others' prompts, over its expected time (assumed)",
    ),
    "interference.other": (
        0.9,
        0.0,
        "reading the others' prompts, over its expected time (assumed)",
    ),
}
NOISE = 0.12
"""Of the logarithm of a TPOT; beyond it residuals count by their size alone."""
ELSEWHERE = 0.35
PROFILE = Path(__file__).parent.parent / "profiles" / "serving" / "step.yaml"
Floats = NDArray[np.float64]
Lines = Sequence[tuple[dict[str, Any], Described]]


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def usable(line: dict[str, Any]) -> bool:
    workload, measured = line["workload"], line["measured"]
    return bool(
        workload["arrival"] == "closed_loop"
        and not line.get("topology")
        and "tpot_ms_mean" in measured
        and not set(line["flags"]) - {"throughput_derived_littles_law", "prefill_anomalously_low"}
    )


def lines_of(path: Path) -> list[tuple[dict[str, Any], Described]]:
    found = []
    for _, line in read_json_lines(path, "serving result"):
        if usable(line):
            try:
                case = described(line)
            except UsageError as error:
                say(f"{line['id']}, {line['model']} on {line['gpu']}: {error.problem}")
                continue
            found.append((line, case))
    return found


MISSED: dict[str, list[str]] = {}
"""By GPU laws that do not hold on what was held out, where it has none of their kind that does."""


def kernel_logs() -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """The shipped calibrations' coefficients of kernels by GPU, and their means, in logarithms."""
    listed: dict[str, dict[str, list[float]]] = {}
    missed: dict[str, list[str]] = {}
    held: dict[str, set[str]] = {}
    for path in sorted(profile_dir("calibrations").glob("*.yaml")):
        calibration = read_calibration(path)
        of_gpu = listed.setdefault(calibration.device, {})
        found, misses = kernels_of(calibration, only_holding=False)
        missed.setdefault(calibration.device, []).extend(misses)
        kinds = {KERNELS[name][0] for name in kernels_of(calibration)[0]}
        held.setdefault(calibration.device, set()).update(kinds)
        for name, value in found.items():
            of_gpu.setdefault(name, []).append(math.log(value))
    for device, keys in missed.items():
        alone = [key for key in keys if key.split(".")[0] not in held[device]]
        if alone:
            MISSED[device] = alone
    logs = {gpu: {name: float(np.mean(those)) for name, those in of.items()}
            for gpu, of in listed.items() if of}  # fmt: skip
    means = {name: float(np.mean([of[name] for of in logs.values() if name in of]))
             for name in KERNELS}  # fmt: skip
    return logs, means


FACTORS: dict[str, dict[str, float]] = {}


def model_of(case: Described, coefficients: dict[str, float]) -> StepModel:
    factors = FACTORS.get(gpu(case), {})
    scaled = {name: value * factors.get(name, 1.0) for name, value in coefficients.items()}
    return StepModel(case.deployment, scaled)


def predict(case: Described, coefficients: dict[str, float]) -> float:
    return serve(model_of(case, coefficients), case.load).tpot_s


def fit(
    cases: Sequence[Described],
    measured: Floats,
    free: Sequence[str],
    start: dict[str, float] | None = None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Gauss-Newton with damping on a pseudo-Huber loss, in log coefficients."""
    medians = np.array([math.log(PRIORS[name][0]) for name in free])
    sds = np.array([PRIORS[name][1] for name in free])
    fixed = {name: median for name, (median, _, _) in PRIORS.items()}

    def logs(x: Floats) -> Floats:
        values = {**fixed, **dict(zip(free, np.exp(x).tolist(), strict=True))}
        return np.array([math.log(predict(case, values)) for case in cases])

    def loss(residual: Floats, x: Floats) -> float:
        u = residual / NOISE
        return float((2 * (np.sqrt(1 + u * u) - 1)).sum() + (((x - medians) / sds) ** 2).sum())

    x, damping = medians.copy(), 1e-2
    if start is not None:
        x = np.array([math.log(start[name]) for name in free])
    residual = logs(x) - measured
    best = loss(residual, x)
    for _ in range(30):
        jacobian = slopes(logs, x, residual + measured)
        weight = 1 / np.sqrt(1 + (residual / NOISE) ** 2) / NOISE**2
        gradient = jacobian.T @ (weight * residual) + (x - medians) / sds**2
        hessian = jacobian.T @ (weight[:, None] * jacobian) + np.diag(1 / sds**2)
        while damping < 1e6:
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
            tried = x - step
            new = logs(tried) - measured
            if loss(new, tried) < best:
                break
            damping *= 4
        else:
            break
        gained = best - loss(new, tried)
        x, residual, best, damping = tried, new, loss(new, tried), damping / 4
        if gained < 1e-2:
            break
    spreads = np.sqrt(np.diag(np.linalg.inv(hessian))).tolist()
    fitted = {**fixed, **dict(zip(free, np.exp(x).tolist(), strict=True))}
    return fitted, dict(zip(free, spreads, strict=True))


def slopes(logs: Callable[[Floats], Floats], x: Floats, here: Floats) -> Floats:
    columns = []
    for place in range(len(x)):
        moved = x.copy()
        moved[place] += 1e-3
        columns.append((logs(moved) - here) / 1e-3)
    return np.array(columns).T


def error_words(errors: Floats) -> str:
    shares = np.abs(np.exp(errors) - 1)
    return f"{100 * np.median(shares):.1f} / {100 * np.percentile(shares, 90):.1f} %"


def left_out(
    cases: Sequence[Described],
    measured: Floats,
    free: Sequence[str],
    names: Sequence[str],
    start: dict[str, float],
) -> Floats:
    """Log errors of each case by a fit that saw no case of its group, by ``names``."""
    errors = np.zeros(len(cases))
    for name in sorted(set(names)):
        out = [place for place, other in enumerate(names) if other == name]
        kept = [place for place, other in enumerate(names) if other != name]
        part, _ = fit([cases[place] for place in kept], measured[kept], free, start)
        for place in out:
            errors[place] = math.log(predict(cases[place], part)) - measured[place]
    return errors


def with_delays(found: Lines, fitted: dict[str, float]) -> tuple[dict[str, float], Floats]:
    """The coefficients of first tokens, by the middle of their errors, and these errors then.

    A loaded time is the root of one that only waits for a step and of a burst, so that a factor of
    the burst moves it by its root.
    """
    errors: dict[str, list[float]] = {}
    for line, case in found:
        truth = line["measured"].get("ttft_ms_mean")
        if truth and case.load.concurrency > 1:
            seen = serve(model_of(case, fitted), case.load)
            kind = case.deployment.engine.kind
            errors.setdefault(kind, []).append(math.log(truth / 1e3 / seen.ttft_loaded_s))
    delays = {f"first.{kind}": float(np.clip(np.exp(2 * np.median(those)), 1, 20))
              for kind, those in errors.items() if f"first.{kind}" in fitted}  # fmt: skip
    left = [np.array(those) - np.median(those) for those in errors.values()]
    return {**fitted, **delays}, np.concatenate(left)


def profile_text(
    fitted: dict[str, float], spreads: dict[str, float], found: Lines,
    log_sd: float, ttft_log_sd: float, words: Sequence[str], means: dict[str, float],
) -> str:  # fmt: skip
    pairs = sorted({(case.deployment.engine.kind, gpu(case)) for _, case in found})
    sets = Counter(line["set"] for line, _ in found)
    repos = sorted({f"{line['source']['repo']} ({line['source']['licence']})" for line, _ in found})
    said = " ".join(
        [
            f"Fitted to {len(found)} published serving results by tools/fit_serving.py: unflagged,",
            "aggregated, closed-loop TPOT of",
            ", ".join(f"{name} ({count})" for name, count in sorted(sets.items())) + ";",
            "from " + ", ".join(repos) + ".",
            *words,
        ]
    )
    lines = ["name: step", "source: >-"]
    lines += textwrap.wrap(said, 96, initial_indent="  ", subsequent_indent="  ")
    lines.append("fitted:  # GPUs of the results, by engine")
    for engine in dict.fromkeys(engine for engine, _ in pairs):
        text = f"  {engine}: [{', '.join(name for other, name in pairs if other == engine)}]"
        lines += textwrap.wrap(text, 96, subsequent_indent="    ", drop_whitespace=True)
    shown = ", ".join(f"{key}: {math.exp(value):.3f}" for key, value in means.items())
    lines.append(f"kernel_means: {{{shown}}}  # geometric, of profiles/calibrations")
    lines.append("kernels:  # of a GPU's calibration, over the geometric mean of calibrations")
    for name, factors in sorted(FACTORS.items()):
        shown = ", ".join(f"{key}: {value:.3f}" for key, value in factors.items())
        lines.append(f"  {name}: {{{shown}}}")
    lines.append(
        "missed_laws:  # in kernels though they do not hold: the GPU has no other of the kind"
    )
    lines += [f"  {name}: [{', '.join(laws)}]" for name, laws in sorted(MISSED.items())]
    lines += [
        f"held_out_log_sd: {log_sd:.3f}  # of TPOT, models left out",
        f"elsewhere_log_sd: {ELSEWHERE}  # added where no line was of that GPU or engine: assumed",
        f"ttft_log_sd: {ttft_log_sd:.3f}  # of a time to first token under load",
        "coefficients:",
    ]
    for name, (_, _, meaning) in PRIORS.items():
        value = float(f"{fitted[name]:.4g}")
        text = f"{value:.3e}" if value < 1e-3 or value >= 1e4 else f"{value:.4g}"
        lines.append(
            f"  {name}: {{value: {text}, log_sd: {spreads.get(name, 0.0):.2f}, "
            f'meaning: "{meaning}"}}'
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    logs, means = kernel_logs()
    for name, of in logs.items():
        FACTORS[name] = {key: math.exp(value - means[key]) for key, value in of.items()}
    found = lines_of(arguments.file)
    cases = [case for _, case in found]
    measured = np.log([line["measured"]["tpot_ms_mean"] / 1e3 for line, _ in found])
    free = [name for name, (_, sd, _) in PRIORS.items() if sd > 0]
    prior = {name: median for name, (median, _, _) in PRIORS.items()}
    fitted, spreads = fit(cases, measured, free)
    served = np.array([line["set"] != "llamacpp_gpu_bench" for line, _ in found])
    said = []
    groups = {
        "its model left out": [family(case) for case in cases],
        "its GPU left out": [gpu(case) for case in cases],
        "its engine left out": [case.deployment.engine.kind for case in cases],
    }
    judged = {
        "priors alone": np.log([predict(case, prior) for case in cases]) - measured,
        "fitted": np.log([predict(case, fitted) for case in cases]) - measured,
    }
    for what, names in groups.items():
        judged[what] = left_out(cases, measured, free, names, fitted)
    for what, errors in judged.items():
        say(f"{what}: all {error_words(errors)}, of serving engines {error_words(errors[served])}")
        if what in ("fitted", "its model left out", "its GPU left out"):
            said.append(f"{what} {error_words(errors)}")
    held_out = np.abs(judged["its model left out"])
    log_sd = float(np.percentile(held_out, 80)) / INTERVAL_SDS
    fitted, beyond = with_delays(found, fitted)
    ttft_log_sd = float(np.percentile(np.abs(beyond), 80)) / INTERVAL_SDS
    for name in free:
        say(f"{name:26s} {PRIORS[name][0]:10.3g} -> {fitted[name]:10.3g}")
    words = ["Errors of TPOT, median / 90th percentile: " + "; ".join(said) + "."]
    text = profile_text(fitted, spreads, found, log_sd, ttft_log_sd, words, means)
    if not arguments.dry_run:
        PROFILE.write_text(text, encoding="utf-8")


def family(case: Described) -> str:
    """Models of one shape are one: DeepSeek's R1 and V3."""
    name = case.deployment.model.name
    return {"deepseek-r1": "deepseek-v3"}.get(name, name)


def gpu(case: Described) -> str:
    assert case.deployment.gpu is not None
    return case.deployment.gpu.name


if __name__ == "__main__":
    main()
