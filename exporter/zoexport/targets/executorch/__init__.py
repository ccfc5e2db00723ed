"""ExecuTorch targets: programs become methods of one .pte file."""
