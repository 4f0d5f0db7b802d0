"""Loads: prompts of others cost tokens, queues wait, pipelines and rates keep Little's law."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from attnprof.serving.load import Load, at_rate, batch_latency_s, prompt_s, serve
from attnprof.serving.step import Step, StepModel, Work
from tests.serving.test_step import model_of

CHAT = Load(concurrency=32, prompt_len=2048, output_len=512)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "gpt-oss-120b"])
def test_more_at_once_write_more_tokens_each_later(name: str) -> None:
    model = model_of(name, tp=8, num_gpus=8)
    found = [serve(model, replace(CHAT, concurrency=2.0**power)) for power in range(9)]
    for less, more in itertools.pairwise(found):
        assert less.tpot_s < more.tpot_s
        assert less.output_tokens_per_s < more.output_tokens_per_s
        assert less.ttft_idle_s == more.ttft_idle_s
        assert more.ttft_idle_s < more.ttft_next_s <= more.ttft_loaded_s <= more.ttft_burst_s


def test_a_lone_request_is_interrupted_by_none() -> None:
    found = serve(model_of("llama-3.1-8b"), replace(CHAT, concurrency=1))
    assert found.tpot_s == found.decode.total_s
    assert found.ttft_idle_s == found.ttft_next_s == found.ttft_burst_s
    assert found.queue_s == 0


def test_longer_prompts_of_others_cost_more_and_shorter_answers_too() -> None:
    model = model_of("llama-3.1-70b", tp=4, num_gpus=4)
    base = serve(model, CHAT)
    assert serve(model, replace(CHAT, prompt_len=8192)).tpot_s > base.tpot_s
    shared = base.tpot_s - base.decode.total_s
    half = serve(model, replace(CHAT, output_len=256))
    assert half.tpot_s - half.decode.total_s == pytest.approx(2 * shared, rel=0.1)


def test_what_is_not_held_waits_as_long_as_littles_law_says() -> None:
    model = model_of("llama-3.1-8b")
    held = serve(model, CHAT)
    crowded = serve(model, replace(CHAT, concurrency=96, most=32))
    assert crowded.tpot_s == held.tpot_s
    assert crowded.output_tokens_per_s == pytest.approx(held.output_tokens_per_s)
    in_system = (
        crowded.output_tokens_per_s
        / CHAT.output_len
        * (crowded.ttft_loaded_s + CHAT.output_len * crowded.tpot_s)
    )
    assert in_system == pytest.approx(96)


def test_a_rate_that_is_served_meets_its_concurrency() -> None:
    model = model_of("llama-3.1-8b")
    concurrency = at_rate(model, CHAT, 4.0, most=256)
    found = serve(model, replace(CHAT, concurrency=concurrency))
    held = 4.0 * (found.ttft_next_s + CHAT.output_len * found.tpot_s)
    assert held == pytest.approx(concurrency, rel=0.02)
    assert at_rate(model, CHAT, 1000.0, most=256) == 256, "more come than are served"


def test_chunks_of_a_prompt_read_the_weights_again() -> None:
    model = model_of("llama-3.1-70b", tp=4, num_gpus=4)
    whole = prompt_s(model, replace(CHAT, prompt_len=8192))
    chunked = prompt_s(model, replace(CHAT, prompt_len=8192, chunk_len=512))
    assert whole < chunked < 3 * whole


@pytest.mark.parametrize(("prompt_len", "chunk_len"), [(1000, 1), (40_000, 128), (40_001, 128)])
def test_few_of_very_many_chunks_stand_for_all(
    monkeypatch: pytest.MonkeyPatch, prompt_len: int, chunk_len: int
) -> None:
    model = model_of("llama-3.1-8b")
    context = prompt_len + CHAT.output_len / 2
    starts = range(0, prompt_len, chunk_len)
    each = [
        Work(context=context, new=min(chunk_len, prompt_len - past), past=past) for past in starts
    ]
    one_by_one = sum(model.step(work).total_s for work in each)
    computed: list[Work] = []
    step = StepModel.step

    def counted(self: StepModel, work: Work) -> Step:
        computed.append(work)
        return step(self, work)

    monkeypatch.setattr(StepModel, "step", counted)
    found = prompt_s(model, replace(CHAT, prompt_len=prompt_len, chunk_len=chunk_len))
    assert found == pytest.approx(one_by_one, rel=1e-3)
    assert len(computed) < 150


def test_stages_of_a_pipeline_halve_the_batch_of_each() -> None:
    options: dict[str, Any] = {"num_gpus": 8, "tp": 4}
    two = serve(model_of("llama-3.1-70b", pp=2, **options), replace(CHAT, concurrency=256))
    one = serve(model_of("llama-3.1-70b", tp=4, num_gpus=4), replace(CHAT, concurrency=256))
    assert two.tpot_s < one.tpot_s


def test_a_batch_that_starts_at_once_ends_later_with_more() -> None:
    model = model_of("llama-3.1-8b")
    few, many = (batch_latency_s(model, replace(CHAT, concurrency=c)) for c in (1, 64))
    assert few < many < 64 * few
