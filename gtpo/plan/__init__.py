"""What is said before anything is spent: data that cannot be trained on, the resolved run, its memory."""
