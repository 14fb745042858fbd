"""A benchmark in code, for what a file cannot say: generated problems, other sources, filters.

gtpo eval MODEL --benchmarks own_benchmark:times_tables
"""

from gtpo.rewards.data.problem import Problem


def times_tables():
    """Return the problems, always in the same order. The ids are what a resumed run goes by."""
    return [
        Problem(id=f"{a}x{b}", problem=f"What is {a} times {b}?", answer=str(a * b), subject=f"table of {a}", level=1)
        for a in (7, 8, 9)
        for b in range(2, 10)
    ]
