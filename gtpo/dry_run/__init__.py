"""What is checked and shown before GPU time is spent: the data, the resolved run, its memory."""
