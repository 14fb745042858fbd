"""Evaluation: benchmarks, engines, sampling, metrics, statistics, store, compare, report."""
