"""What lies on disk: written by `gtpo eval`, read by `gtpo compare`."""
