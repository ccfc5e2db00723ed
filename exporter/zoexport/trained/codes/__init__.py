"""The integers of quantized weights, or of quantized adapters, a slot for each."""
