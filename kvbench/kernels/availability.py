"""Whether Triton's kernels can run on a device, and whether as machine code or interpreted."""

import importlib.util

import torch


def unsupported(device: torch.device) -> str | None:
    """None if Triton kernels run on this device, interpreted or not, else why not."""
    del device  # the interpreter runs wherever Triton does
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    return None


def interpreted(device: torch.device) -> str | None:
    """The reason why kernels run in Triton's interpreter on this device; None if compiled."""
    if unsupported(device) is not None:
        return None
    from kvbench.kernels.jit import interpreting  # noqa: PLC0415 - needs Triton

    if device.type == "cpu":
        return "Triton has no GPU here: run by its interpreter, which is checked and never timed"
    if interpreting():
        return "TRITON_INTERPRET is set: run by Triton's interpreter, which is never timed"
    return None
