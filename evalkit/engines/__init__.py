"""Engines: one interface (`base.Engine`) and several ways to sample. Each is imported when it is chosen."""
