"""ExecuTorch with Qualcomm's QNN delegate, on the Hexagon NPU."""
