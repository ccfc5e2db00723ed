"""Zeroth-order methods in PyTorch on an accelerator, many runs side by side: their steps, not zoexport's programs."""
