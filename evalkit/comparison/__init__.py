"""The numbers of `gtpo compare`: differences, curves over k, curves over training."""
