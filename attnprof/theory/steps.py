"""A layer, block or model -> the kernels of one call: products with weights, and attentions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnprof.dtypes import dtype_named
from attnprof.models.spec import ModelSpec
from attnprof.theory.scopes import (
    Stack,
    Stacks,
    logit_rows,
    read_params,
    rows_of,
    stacks_of,
    tokens_of,
)
from attnprof.workload import Workload


@dataclass(frozen=True)
class Product:
    """Rows times a matrix of weights, ``count`` times over (one a layer).

    Args:
        rows: That are multiplied; of experts those of all that are chosen, as if one read them.
        weight_bytes: Read for one product.
        rows_bytes: Of the rows that come in and go out.
        is_by_row: Whether each row is a product of its own, which reads the weights anew: so
            torch multiplies rows that do not lie one after another.
    """

    rows: int
    flops: int
    weight_bytes: float
    rows_bytes: float
    count: int
    is_by_row: bool = False


@dataclass(frozen=True)
class StepWork:
    """What a call of a layer, block or model computes.

    Args:
        num_tokens: New ones, over all sequences.
        num_layers: That the call runs through, an encoder's included.
        attentions: Of each kind of layer, over its layers, as workloads of scope op.
    """

    num_tokens: int
    num_layers: int
    products: tuple[Product, ...]
    attentions: tuple[Workload, ...]

    @property
    def num_products(self) -> int:
        return sum(one.count for one in self.products)

    @property
    def flops(self) -> float:
        """Of the products alone. [FLOP]"""
        return float(sum(one.count * one.flops for one in self.products))

    @property
    def weight_bytes(self) -> float:
        return sum(one.count * one.weight_bytes for one in self.products)

    @property
    def rows_bytes(self) -> float:
        return sum(one.count * one.rows_bytes for one in self.products)


def work_of_step(workload: Workload, spec: ModelSpec | None = None) -> StepWork:
    """The kernels of a call forward.

    Args:
        spec: Of its model; read by the model's name where left out.

    Raises:
        UsageError: No such model.

    >>> layer = Workload(backend="eager", scope="layer", q_len=16, kv_len=16, num_q_heads=2,
    ...     num_kv_heads=2, head_dim=8)
    >>> work = work_of_step(layer)
    >>> work.num_products, work.flops, work.weight_bytes
    (4, 32768.0, 4096)
    """
    stacks = stacks_of(workload, spec)
    reads_source = workload.phase in ("prefill", "train")
    read = stacks.all if reads_source else stacks.layers
    attentions = [
        one
        for stack in read
        for one in (*stack.attentions, *(() if stack.cross is None else (stack.cross,)))
    ]
    return StepWork(
        num_tokens=tokens_of(workload),
        num_layers=sum(stack.count for stack in read),
        products=tuple(_products(workload, stacks, reads_source=reads_source)),
        attentions=tuple(attentions),
    )


def _products(step: Workload, stacks: Stacks, *, reads_source: bool) -> Iterator[Product]:
    for stack in stacks.layers:
        yield from _of_stack(step, stack)
    if reads_source:
        source_len = step.source_len or step.kv_len
        source = replace(step, phase="prefill", q_len=source_len)
        for stack in stacks.encoder:
            yield from _of_stack(source, stack)
    yield from _head(step, stacks, dtype_named(step.dtype).bytes)


def _of_stack(step: Workload, stack: Stack) -> Iterator[Product]:
    size = dtype_named(step.weight_dtype or step.dtype).bytes
    element_bytes = dtype_named(step.dtype).bytes
    for matrix in stack.layer.matrices:
        rows = rows_of(matrix, stack.layer, step)
        if rows == 0:
            continue
        chosen = min(matrix.active_count, matrix.count)
        widths = matrix.in_features + matrix.out_features
        yield Product(
            rows=rows,
            flops=2 * matrix.num_active_params * rows,
            weight_bytes=read_params(matrix, tokens_of(step)) * size,
            rows_bytes=rows * chosen * widths * element_bytes,
            count=stack.count,
        )


def _head(step: Workload, stacks: Stacks, element_bytes: float) -> Iterator[Product]:
    """The products behind the layers of a model: of the rows whose logits are made."""
    spec = stacks.spec
    if spec is None or step.scope != "model":
        return
    for matrix in spec.outer:
        is_tied = spec.tied_embeddings and matrix.name == "embedding"
        if matrix.role not in ("head", "other") and not is_tied:
            continue
        rows = tokens_of(step) if matrix.role == "other" else logit_rows(stacks, step)
        # The library takes the last row of each prompt as a view of all of them.
        is_view = step.implementation == "transformers" and rows < tokens_of(step)
        yield Product(
            rows=rows,
            flops=2 * matrix.num_active_params * rows,
            weight_bytes=matrix.num_params * element_bytes,
            rows_bytes=rows * (matrix.in_features + matrix.out_features) * element_bytes,
            count=1,
            is_by_row=is_view,
        )
