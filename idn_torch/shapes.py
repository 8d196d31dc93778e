"""Shapes broadcast without torch's own helper, whose first call imports a computer algebra system."""

import numpy as np
import torch

__all__ = ["broadcast_shapes"]


def broadcast_shapes(*shapes: tuple[int, ...]) -> torch.Size:
    """The shape that all the given ones broadcast to.

    Raises:
        ValueError: they do not.
    """
    return torch.Size(np.broadcast_shapes(*shapes))
