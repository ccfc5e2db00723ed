"""MLX's memory in a MeBP step, weights streamed against everything loaded."""
