"""How a verdict is bounded: static limits, exact short cuts, worker processes that may be killed."""
