"""Scope op, a mixed step: sequences that decode, and one whose prompt comes, in the same layers."""

import math
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from attnprof.measured import Check
from attnprof.theory.calls import parts_of_step
from attnprof.workloads.mla import MlaLayer, MlaOp
from attnprof.workloads.op import AttentionOp, Layer
from attnprof.workloads.operation import Operation

_PROMPT_SEED = 15_485_863  # so that the prompt is other noise than what is decoded


Layers = list[Layer] | list[MlaLayer]


class MixedOp(Operation):
    """Two calls of the kernel in every layer: that of the decode, then that of the prompt."""

    inputs: tuple[Layers, Layers]

    def prepare(self, kind: str | None) -> None:
        decode, prompt = parts_of_step(self.workload)
        made: type[AttentionOp | MlaOp] = AttentionOp if decode.mla is None else MlaOp
        self.decode: Any = made(decode, self.device, self.seed, kind)
        self.prompt: Any = made(prompt, self.device, self.seed + _PROMPT_SEED, kind)
        self.operators = self.decode.operators
        if decode.mla is not None:  # both are of the same layers
            layers: Any = zip(self.decode.inputs, self.prompt.inputs, strict=True)
            for decoding, coming in layers:
                coming.weight = decoding.weight

    def allocate(self) -> tuple[Layers, Layers]:
        return self.decode.inputs, self.prompt.inputs

    def run(self, inputs: tuple[Layers, Layers]) -> Any:
        """The outputs of the last layer, of the decode and of the prompt."""
        outputs: tuple[Any, ...] = ()
        for decoding, coming in zip(*inputs, strict=True):
            del outputs
            outputs = (self.decode.call.attend(decoding), self.prompt.call.attend(coming))
        return outputs

    def pinned(self) -> AbstractContextManager[object]:
        pinned: AbstractContextManager[object] = self.decode.pinned()
        return pinned

    @property
    def kv_bytes(self) -> int:
        return int(self.decode.kv_bytes + self.prompt.kv_bytes)

    @property
    def weight_bytes(self) -> int:
        return int(self.decode.weight_bytes)

    @property
    def mask_bytes(self) -> int:
        return int(self.decode.mask_bytes + self.prompt.mask_bytes)

    def compared(self, output: Any) -> Check:
        """Both outputs; what is said is of the one nearer to its bound, or further beyond it."""
        parts = zip((self.decode, self.prompt), output, strict=True)
        checks: list[Check] = [part.compared(out) for part, out in parts]
        worse = max(checks, key=_share_of_bound)
        return replace(worse, rows=sum(check.rows for check in checks))


def _share_of_bound(check: Check) -> float:
    return math.inf if check.max_abs_error is None else check.max_abs_error / check.bound
