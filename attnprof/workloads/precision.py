"""Names of element types -> what torch calls them, multiplies them by, and loses by them."""

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from attnprof.dtypes import dtype_named
from attnprof.errors import UnsupportedError
from attnprof.theory.weights import INT4_GROUPS, STORED_DTYPES

INT4_CPU_ROWS = 16  # outputs that torch packs together on a CPU


def torch_dtype(name: str) -> torch.dtype:
    """Torch's type for tensors of the dtype called ``name``; tf32 lies in memory as float32.

    >>> torch_dtype("tf32")
    torch.float32
    """
    found = getattr(torch, "float32" if name == "tf32" else name)
    assert isinstance(found, torch.dtype)
    return found


def unit_roundoff(name: str) -> float:
    """Largest relative error of rounding to the dtype called ``name``, or to what it is multiplied
    in. [1]

    >>> unit_roundoff("bfloat16") == 2**-8, unit_roundoff("tf32") == 2**-11
    (True, True)
    """
    return dtype_named(name).epsilon / 2


@contextmanager
def multiplying(dtype: str, device: torch.device) -> Iterator[None]:
    """float32 tensors on ``device`` are multiplied in tf32, or in float32 where that is asked for.

    Torch's own default differs by library: cuDNN's RNNs take tf32 where cuBLAS does not.
    """
    if dtype not in ("float32", "tf32") or device.type != "cuda":
        yield
        return
    wanted = "tf32" if dtype == "tf32" else "ieee"
    settings: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.rnn)
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = wanted
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value


def rms_error(output: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square of ``output − reference``, as a share of the reference's. [1]

        √(Σ (o − r)² / Σ r²)

    Args:
        reference: In float64, from weights, inputs and caches that nothing has rounded.

    >>> rms_error(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0]))
    0.2
    """
    expected = reference.double()
    found = output.to(expected.device).double()
    return float((found - expected).norm() / expected.norm())


@contextmanager
def _quiet() -> Iterator[None]:
    """torchao says at its import which of its optional libraries it does not find."""
    silenced = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(silenced)


def quantize_weights(module: nn.Module, weight_dtype: str) -> None:
    """Store the weights of all linear layers in ``module`` in ``weight_dtype``, by torchao.

    int8 has a scale an output row; float8_e4m3fn too; int4 a scale and a zero point a group of up
    to 128 inputs. They are multiplied with tokens in the dtype of the module. Everything else
    (norms, embeddings, cells of an RNN) stays as it is.

    Raises:
        UnsupportedError: torchao is missing, has no such type here, or a row cannot be grouped.
    """
    if importlib.util.find_spec("torchao") is None:
        raise UnsupportedError(f"weights of {weight_dtype} need torchao: pip install torchao")
    linears = [one for one in module.modules() if isinstance(one, nn.Linear)]
    if not linears:
        raise UnsupportedError(f"there is no linear layer to store in {weight_dtype}")
    with _quiet():
        from torchao.quantization import quantize_

        for linear in linears:
            config = _config(weight_dtype, linear)
            try:
                quantize_(linear, config)
            except (AssertionError, ImportError, NotImplementedError, ValueError) as error:
                reason = str(error).strip().partition("\n")[0]
                raise UnsupportedError(f"torchao has no {weight_dtype} here: {reason}") from error


def _config(weight_dtype: str, linear: nn.Linear) -> Any:
    """torchao's name for what is wanted, on the device of ``linear``."""
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int4WeightOnlyConfig,
        Int8WeightOnlyConfig,
    )

    rows, inputs = linear.out_features, linear.in_features
    if inputs == 1:
        raise UnsupportedError(f"torchao finds no scale of a row of one input: {weight_dtype}")
    if weight_dtype == "int8":
        return Int8WeightOnlyConfig(set_inductor_config=False)
    if weight_dtype == "float8_e4m3fn":
        return Float8WeightOnlyConfig(set_inductor_config=False)
    if weight_dtype != "int4":
        served = ", ".join(STORED_DTYPES)
        raise UnsupportedError(f"weights of {weight_dtype} are not served: {served}")
    group = next((size for size in INT4_GROUPS if inputs % size == 0), None)
    if group is None:
        raise UnsupportedError(
            f"int4 shares a scale among {INT4_GROUPS[-1]} inputs, and a layer has {inputs}"
        )
    if linear.weight.device.type == "cpu":
        if rows % INT4_CPU_ROWS:
            raise UnsupportedError(
                f"int4 is packed {INT4_CPU_ROWS} outputs at a time on a CPU, and a layer has {rows}"
            )
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        return PrototypeInt4WeightOnlyConfig(group_size=group, set_inductor_config=False)
    return Int4WeightOnlyConfig(
        group_size=group, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
    )


def held_weight_bytes(module: nn.Module) -> int:
    """Bytes of the weights of ``module`` as they are stored, scales and zero points included."""
    return sum(_stored_bytes(weight) for weight in module.parameters())


def _stored_bytes(weight: torch.Tensor) -> int:
    if not hasattr(weight, "__tensor_flatten__"):
        return weight.nbytes
    names, _ = weight.__tensor_flatten__()
    return sum(_stored_bytes(getattr(weight, name)) for name in names)


def effective_weight(linear: nn.Linear) -> torch.Tensor:
    """What a linear layer multiplies by, ``[out, in]``: of a stored type what it stands for."""
    weight = linear.weight
    if not hasattr(weight, "__tensor_flatten__"):
        return weight
    one_by_one = torch.eye(linear.in_features, dtype=weight.dtype, device=weight.device)
    return nn.functional.linear(one_by_one, weight).T
