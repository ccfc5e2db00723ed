"""Generation beside llama.cpp's: docs/results/generation.md."""
