"""What a run starts from: the model and its tokenizer, their dimensions, the data."""
