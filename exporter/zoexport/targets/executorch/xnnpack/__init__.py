"""ExecuTorch with the XNNPACK delegate and kernels of our own: whole programs, or those of single layers."""
