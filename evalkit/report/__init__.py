"""What is shown of a comparison: tables, figures, one self-contained page."""
