"""A deployment and its load -> TTFT, TPOT and throughput.

Engines batch continuously: while a sequence writes its answer, prompts of the others are read in
the same steps or between them, and what that costs is shared by all that are writing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnprof.engines.base import SPLITS_LAYERS
from attnprof.serving.step import TERMS, Step, StepModel, Work

MOST_STEPS = 64  # of one prompt that are computed one by one
DEFAULT_CHUNK = 8192
"""Tokens of prompts that a step reads at most, where the engine's setting is not known."""


@dataclass(frozen=True)
class Load:
    """What is asked of a deployment: ``concurrency`` requests at any time, of these lengths.

    Args:
        chunk_len: Tokens of prompts that one step reads at most.
        most: Requests that are served at once, by memory and scheduler; the others wait.
        source_len: Tokens that an encoder reads of each request beside its prompt.
    """

    concurrency: float
    prompt_len: float
    output_len: float
    chunk_len: float = DEFAULT_CHUNK
    source_len: int = 0
    most: float = math.inf

    @property
    def in_service(self) -> float:
        return min(self.concurrency, max(1.0, self.most))


@dataclass(frozen=True)
class Served:
    """How a load is served. A range of a time to first token, as that hangs on when one arrives.

    Args:
        decode: The step in which nothing but answers is written.
        ttft_idle_s: Of a request that is alone.
        ttft_next_s: Of one that comes while the others write.
        ttft_loaded_s: At the mean over requests, while others are served.
        ttft_burst_s: Of one among all that come at once, at the mean.
        queue_s: What one waits until it is served at all, a part of the last two.
    """

    decode: Step
    tpot_s: float
    ttft_idle_s: float
    ttft_next_s: float
    ttft_loaded_s: float
    ttft_burst_s: float
    queue_s: float
    output_tokens_per_s: float


def num_stages(model: StepModel) -> int:
    """Stages of a pipeline that work at once: engines that only give whole layers to each GPU
    have them take turns."""
    deployment = model.deployment
    return 1 if deployment.engine.kind in SPLITS_LAYERS else deployment.pp


def group_batch(model: StepModel, concurrency: float) -> float:
    """Sequences in a step of the fullest group of ranks and one stage of its pipeline.

    Engines give a request to the replica that has the fewest, and each request is whole; a
    concurrency that is none is a mean over time, which all share alike. Stages take turns, and the
    parts of a batch that are in them together take as long as parts of equal size.
    """
    each = concurrency / model.deployment.dp
    if float(concurrency).is_integer():
        each = math.ceil(each)
    return max(1.0, each / num_stages(model))


def even_loads(model: StepModel, load: Load) -> Iterator[tuple[float, Load]]:
    """Shares of the replicas, each with a load in which all are as full as those are.

    Groups that attend apart are one: they step together, at the pace of the fullest.
    """
    served, dp = replace(load, concurrency=load.in_service, most=math.inf), model.deployment.dp
    few, fuller = divmod(served.concurrency, dp)
    if model.deployment.dp_attention or not fuller or not float(served.concurrency).is_integer():
        yield 1.0, served
        return
    yield fuller / dp, replace(served, concurrency=(few + 1) * dp)
    if few:
        yield 1 - fuller / dp, replace(served, concurrency=few * dp)


def decode_step(model: StepModel, load: Load) -> Step:
    """The step in which every sequence writes one token, at half its answer."""
    return model.step(
        Work(
            batch=group_batch(model, load.in_service),
            context=load.prompt_len + load.output_len / 2,
            source=load.source_len,
        )
    )


def prompt_s(model: StepModel, load: Load, batch: float = 0.0) -> float:
    """Time that reading one prompt takes, beyond that of the ``batch`` written meanwhile. [s]

    Prompts shorter than a chunk are read together when there are others. Of a prompt in very many
    chunks some stand for those around them.
    """
    context = load.prompt_len + load.output_len / 2
    written = 0.0
    if batch:
        written = model.step(Work(batch=batch, context=context, source=load.source_len)).total_s
    return sum(num * (model.step(work).total_s - written) for num, work in _chunks(load, batch))


def prompt_step(model: StepModel, load: Load) -> Step:
    """Reading one prompt alone, through all its chunks, term by term."""
    terms = dict.fromkeys(TERMS, 0.0)
    for num, work in _chunks(load, 0.0):
        for term, seconds in model.step(work).terms.items():
            terms[term] += num * seconds
    return Step(terms)


def _chunks(load: Load, batch: float) -> Iterator[tuple[int, Work]]:
    """The steps that read a prompt, each with how many it stands for."""
    context = load.prompt_len + load.output_len / 2
    alike = max(1, math.ceil(load.prompt_len / load.chunk_len / MOST_STEPS))
    past = 0.0
    while past < load.prompt_len:
        left = load.prompt_len - past
        num = alike if past and left >= alike * load.chunk_len else 1
        new = min(load.chunk_len, left)
        yield num, Work(
            batch=batch, context=context, new=new, past=past + (num - 1) / 2 * load.chunk_len,
            source=load.source_len, encoded=load.source_len if not past else 0,
        )  # fmt: skip
        past += num * new


def serve(model: StepModel, load: Load) -> Served:
    """Steady service of ``concurrency`` requests, each followed by the next.

        TPOT = t_decode + w · (b − 1) / output_len · t_prompt / stages

    While one answer is written, as many prompts are read as there are other sequences; w is how
    long that holds the writing up, over its expected time: below one where some are read while
    all wait, above where reading in pieces costs more. Times are those of the fullest replica.
    """
    decode = decode_step(model, load)
    batch = group_batch(model, load.in_service)
    idle = prompt_s(model, load)
    stages = num_stages(model)
    between = 0.0
    if batch > 1 and load.output_len:
        beside = prompt_s(model, load, batch)
        between = (batch - 1) / load.output_len * beside / stages
        between *= model.of_engine("interference")
    tpot = decode.total_s + between
    in_group = batch * stages
    reading = idle - model.of_engine("step")
    next_s = idle + (decode.total_s if batch > 1 else 0.0)
    delay = model.of_engine("first") if batch > 1 else 1.0
    burst_s = max(next_s, (idle + (in_group - 1) / 2 * reading / stages) * delay)
    loaded_s = min(burst_s, max(next_s, math.sqrt(next_s * burst_s)))
    in_service_s = loaded_s + load.output_len * tpot
    queue_s = (load.concurrency / load.in_service - 1) * in_service_s
    rate = load.in_service * load.output_len / in_service_s
    parts = list(even_loads(model, load))
    if len(parts) > 1 or parts[0][1].concurrency > load.in_service:
        rate = sum(share * serve(model, even).output_tokens_per_s for share, even in parts)
    return Served(
        decode=decode,
        tpot_s=tpot,
        ttft_idle_s=idle,
        ttft_next_s=next_s + queue_s,
        ttft_loaded_s=loaded_s + queue_s,
        ttft_burst_s=burst_s + queue_s,
        queue_s=queue_s,
        output_tokens_per_s=rate,
    )


def batch_latency_s(model: StepModel, load: Load) -> float:
    """From the start of ``concurrency`` requests at once to the end of the last. [s]"""
    decode = decode_step(model, load)
    in_group = group_batch(model, load.in_service)
    return in_group * prompt_s(model, load) + load.output_len * decode.total_s


def at_rate(model: StepModel, load: Load, requests_per_s: float, most: float) -> float:
    """Requests in service when they come at a rate: Little's law, by bisection.

    Args:
        most: Requests that are served at once; what comes beyond waits.
    """

    def surplus(concurrency: float) -> float:
        asked = Load(**{**vars(load), "concurrency": concurrency})
        served = serve(model, asked)
        return requests_per_s * (served.ttft_next_s + load.output_len * served.tpot_s) - concurrency

    low, high = 0.05, max(1.0, most)
    if surplus(high) > 0:
        return high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if surplus(middle) > 0 else (low, middle)
    return high
