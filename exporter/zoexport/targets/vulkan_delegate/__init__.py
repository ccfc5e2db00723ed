"""ExecuTorch with the Vulkan delegate, on Android's GPU."""
