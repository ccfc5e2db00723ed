"""ExecuTorch's targets, a folder for each delegate, and what they share: programs become methods of one .pte file."""
