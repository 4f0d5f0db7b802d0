"""Every law by its name, as calibrations write it."""

from collections.abc import Mapping

from attnprof.laws.base import Law
from attnprof.laws.cpu import CPU_DECODE, CPU_PREFILL, CPU_SCORES_PREFILL
from attnprof.laws.kernels import ALL_REDUCE, DECODE, GEMM, PREFILL
from attnprof.laws.steps import CPU_STEP, STEP

LAWS: Mapping[str, Law] = {
    law.name: law
    for law in (
        PREFILL, DECODE, GEMM, ALL_REDUCE, CPU_PREFILL, CPU_SCORES_PREFILL, CPU_DECODE,
        STEP, CPU_STEP,
    )
}  # fmt: skip
