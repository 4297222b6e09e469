"""The state of a decode chunk on the GPU: what each step of a CUDA graph leaves for the next."""
