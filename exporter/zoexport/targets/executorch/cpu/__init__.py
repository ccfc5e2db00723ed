"""ExecuTorch's runtime with kernels of our own: programs of single layers over mapped weights."""
