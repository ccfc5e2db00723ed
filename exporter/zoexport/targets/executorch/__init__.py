"""What ExecuTorch's targets share: programs become methods of one .pte file."""
