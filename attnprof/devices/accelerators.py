"""Which kind of device torch can use here."""

import torch


def best_kind() -> str:
    """The first accelerator that torch finds, else the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "xpu" if torch.xpu.is_available() else "cpu"
