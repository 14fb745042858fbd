"""Problems, prompts and the embedded arithmetic task: what training and evaluation both read."""
