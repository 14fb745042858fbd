"""When are two answers equal? Runs in the verification workers; nothing here is imported by callers of `rewards`."""
