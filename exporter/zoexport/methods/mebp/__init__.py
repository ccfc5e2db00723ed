"""MeBP: exact backpropagation, layer by layer, in the memory of inference."""
