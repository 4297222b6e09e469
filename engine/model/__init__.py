"""The Llama family's forward pass, on the ops of `kernels`."""
