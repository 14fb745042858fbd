"""Row kernels of the one-pass loss: what is done to a chunk of logits between its two matmuls."""
