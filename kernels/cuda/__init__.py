"""What the CUDA ops share: packed weights, launch settings and the linear kernels."""
