"""GTPO on other training engines. Nothing else in `gtpo` imports from here."""
