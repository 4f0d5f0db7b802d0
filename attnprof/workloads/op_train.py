"""Scope op, a training step: attention forward in every layer, and back through all of them."""

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from attnprof.measured import Check
from attnprof.workloads.op import AttentionOp, Layer
from attnprof.workloads.places import Place
from attnprof.workloads.reference_train import Step, step_held_against_reference


class TrainOp(AttentionOp):
    """Forward through all layers, then back from the last to the first.

    Every layer keeps what it needs for its way back until that comes, or of a checkpointed step
    its queries, keys and values alone. Gradients are of these; what comes back to each layer's
    output is given.
    """

    def allocate(self) -> list[Layer]:
        """Of a cross-attention keys and values are the source's own, with nothing cached."""
        layers = super().allocate()
        for layer in layers:
            if layer.cache is not None:
                layer.k, layer.v = layer.cache.held()
                layer.cache = None
            for tensor in (layer.q, layer.k, layer.v):
                tensor.requires_grad_()
        return layers

    def run(self, inputs: list[Layer]) -> Any:
        """The output of the first layer and the gradients of its queries, keys and values: the
        last ones to come back."""
        outputs = [self._forward(layer) for layer in inputs]
        out: torch.Tensor | None = None
        grads: tuple[torch.Tensor, ...] = ()
        for layer in reversed(inputs):
            del out, grads
            out = outputs.pop()
            grads = torch.autograd.grad(out, (layer.q, layer.k, layer.v), layer.out_grad)
        assert out is not None
        return (out.detach(), *grads)

    def _forward(self, layer: Layer) -> torch.Tensor:
        if not self.workload.checkpointing:
            return self.call.attend(layer)
        out = checkpoint(self._attend, layer.q, layer.k, layer.v, layer.sinks, use_reentrant=False)
        assert isinstance(out, torch.Tensor)
        return out

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        return self.call.attend(Layer(q, k, v, sinks=sinks))

    def compared(self, output: Any) -> Check:
        """The output of the first layer and its gradients."""
        return step_held_against_reference(
            self.workload, self.inputs[0], Step(*output), Place(self.call.position), self.seed
        )
