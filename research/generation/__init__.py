"""Generation beside llama.cpp's: docs/generate.md."""
