"""ExecuTorch with Apple's Core ML delegate."""
