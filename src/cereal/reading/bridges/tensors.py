"""torch's tensors as NumPy arrays, which share their memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ...base.errors import PipelineError


def of_torch(cls: type) -> bool:
    """Whether this is a class of torch itself."""
    return cls.__module__.partition(".")[0] == "torch"


def is_tensor(value: Any) -> bool:
    """Whether this is a tensor of torch."""
    return any(cls.__name__ == "Tensor" and of_torch(cls) for cls in type(value).__mro__)


def as_numpy(tensor: Any, what: str = "") -> np.ndarray:
    """The memory of a tensor, as a NumPy array. Gradients are not kept.

    A tensor whose memory NumPy cannot share is refused; `what` names it in the error.
    """
    why = _refused(tensor)
    if why:
        raise PipelineError(f"{what or 'the tensor'} {why}.")
    name = str(tensor.dtype).partition(".")[2]
    if hasattr(np, name):
        return tensor.numpy(force=True)
    import ml_dtypes  # JAX needs it, so it is there

    plain = getattr(sys.modules["torch"], f"uint{8 * tensor.element_size()}")
    return tensor.detach().view(plain).numpy().view(getattr(ml_dtypes, name))


def _refused(tensor: Any) -> str:
    """Why NumPy cannot share its memory, and what to write; "" if it can."""
    if tensor.device.type != "cpu":
        return (
            f"is on {tensor.device}, and cereal reads the memory of the host; write "
            f"`tensor.cpu()` (batches go to JAX's device by themselves)"
        )
    if tensor.is_quantized:
        return "is quantized; write `tensor.dequantize()`"
    if tensor.is_nested:
        return "is nested, its rows differ in length; write `tensor.to_padded_tensor(0)`"
    if str(tensor.layout) != "torch.strided":
        return f"is sparse ({tensor.layout}); write `tensor.to_dense()`"
    name = str(tensor.dtype).partition(".")[2]
    if hasattr(np, name) or hasattr(__import__("ml_dtypes"), name):
        return ""
    return f"has the dtype {tensor.dtype}, which NumPy does not have; write `tensor.float()`"
