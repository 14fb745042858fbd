"""What a completion is worth: extract the answer, check the format, verify equality."""
