"""What kernels became: their machine code for GPUs that need not be here, and what holds of it."""
