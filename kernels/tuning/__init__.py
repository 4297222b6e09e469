"""Launch settings of the CUDA kernels, measured: one file a GPU and Triton version."""
