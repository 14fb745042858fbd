"""Text to answer: clean, tokenise, parse."""
