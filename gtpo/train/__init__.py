"""One run and its folder: from the command to the final weights."""
