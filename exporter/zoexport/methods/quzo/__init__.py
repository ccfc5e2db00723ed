"""QuZO: zeroth-order training of quantized weights, which stay integers (docs/quzo.md)."""
