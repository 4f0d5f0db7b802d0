"""Calibrations as tests need them: laws as they are expected before anything is measured."""

from dataclasses import replace

import numpy as np

from attnprof.law_shapes import identity_of
from attnprof.laws.base import Hardware, Law
from attnprof.laws.calibration import CalibratedLaw, Calibration
from attnprof.laws.cpu import CPU_DECODE, CPU_PREFILL
from attnprof.laws.fitting import fit
from attnprof.laws.residual import LocalResidual
from attnprof.laws.steps import CPU_STEP
from attnprof.workload import Workload

CPU = Hardware(flops_per_s=1e11, bytes_per_s=3e10, cache_bytes=32e6, num_units=1)
PREFILL = Workload(backend="flash", q_len=512, kv_len=512)
DECODE = Workload(backend="flash", phase="decode", q_len=1, kv_len=4096, kv_cache="static")
LAYER = Workload(backend="flash", scope="layer", q_len=512, kv_len=512, num_layers=2)
LIBRARY = Workload(backend="flash", scope="model", model="gpt2", q_len=512, kv_len=512,
                   implementation="transformers")  # fmt: skip
_COLUMNS = (
    "flops", "bytes", "batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "window",
    "num_tokens", "num_layers", "num_kernels", "num_shared", "weight_bytes", "few_rows_bytes",
    "few_rows_reads_bytes", "row_products_bytes", "many_rows_bytes", "largest_bytes", "rows_bytes",
    "kv_bytes", "copied_bytes",
    "attention_s",
)  # fmt: skip


def cpu_calibration(name: str = "here", device: str = "a CPU, 1 thread") -> Calibration:
    """Laws of attention, of our layers and of the Transformers library's on a CPU."""
    return Calibration(
        name=name, device=device, engine="attnprof", source={"made_by": "a test"},
        laws={
            "prefill": _expected(CPU_PREFILL, PREFILL), "decode": _expected(CPU_DECODE, DECODE),
            "step": _expected(CPU_STEP, LAYER), "library": _expected(CPU_STEP, LIBRARY),
        },
        overheads={"first_s": 2e-3, "step_s": 2e-4},
    )  # fmt: skip


def _expected(law: Law, workload: Workload) -> CalibratedLaw:
    none = {name: np.zeros(0) for name in _COLUMNS}
    where = {name: value for name, value in identity_of(vars(workload)) if value}
    where.pop("phase")
    fitted = replace(fit(law, none, np.zeros(0), CPU), num_points=1)
    return CalibratedLaw(
        where=where, fitted=fitted, near_sd=0.02,
        residual=LocalResidual(np.zeros((0, len(law.axes))), np.zeros(0)),
        domain=dict.fromkeys(law.axes, (1e-9, 1e15)), errors={"random": (0.05, 0.1)},
    )  # fmt: skip
