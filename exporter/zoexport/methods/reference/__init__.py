"""The methods in plain PyTorch, one module each; they import no passes, and parity compares bundles with them."""
