"""A device and a few workloads -> the medians of each in one fresh process after another."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from attnprof.errors import CannotMeasureError
from attnprof.worker import visit_request
from attnprof.workers import Launcher, Worker, WorkerLostError
from attnprof.workload import Workload

NUM_SAMPLES = 20
LIMIT_S = 1.0
WARMUP_S = 1.0
TIMEOUT_S = 60.0


@contextlib.contextmanager
def launch_medians(
    device: str, threads: int | None, workloads: Sequence[Workload]
) -> Iterator[Callable[[int], Mapping[str, tuple[float, float | None]]]]:
    """What measures ``workloads`` in a new process each time it is called.

    Raises:
        CannotMeasureError: The device is not there, or one of the workloads does not run on it.
    """
    with contextlib.closing(Launcher(device, threads=threads)) as launcher:

        def launch(index: int) -> dict[str, tuple[float, float | None]]:
            worker = launcher.start()
            try:
                return {
                    workload.workload_id: _medians(worker, workload, seed=index)
                    for workload in workloads
                }
            except WorkerLostError as lost:
                raise CannotMeasureError(f"a worker was lost: {lost.reason}") from None
            finally:
                worker.close()

        yield launch


def _medians(worker: Worker, workload: Workload, seed: int) -> tuple[float, float | None]:
    answer = worker.ask(
        visit_request(
            workload,
            seed=seed,
            first=False,
            num_samples=NUM_SAMPLES,
            limit_s=LIMIT_S,
            warmup_s=WARMUP_S,
            growth_limit_s=LIMIT_S,
        ),
        lambda phase: TIMEOUT_S,
    )
    if answer["status"] != "ok":
        raise CannotMeasureError(
            f"{workload.workload_id}: {answer['status']}: {answer['reason']}",
            "test another device, or attnprof doctor --no-self-test",
        )
    samples = answer["samples"]
    return median(samples["wall_s"]), median(samples["cpu_s"]) if samples["cpu_s"] else None
