"""GTPO on verl (Ray), without a fork: docs/verl.md. `settings` imports neither verl nor torch, `advantages` no verl."""
