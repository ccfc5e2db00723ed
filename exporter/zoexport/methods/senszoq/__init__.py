"""SensZOQ: zeroth-order training of the most sensitive weights over quantized ones."""
