"""Vulkan: programs of layers as calls of zoexport's own compute shaders, on a phone's GPU."""
