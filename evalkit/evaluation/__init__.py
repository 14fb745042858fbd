"""`gtpo eval`: settings, benchmarks, sampling, scoring, metrics of a run."""
