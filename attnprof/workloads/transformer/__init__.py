"""An architecture as plain torch modules: blocks and whole models that run any attention kernel."""

from attnprof.workloads.transformer.kernels import Kernels, op_workload
from attnprof.workloads.transformer.model import Transformer, build_transformer
from attnprof.workloads.transformer.step import PARTS, Meter, Segment, Step

__all__ = [
    "PARTS",
    "Kernels",
    "Meter",
    "Segment",
    "Step",
    "Transformer",
    "build_transformer",
    "op_workload",
]
