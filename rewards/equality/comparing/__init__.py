"""Answer against answer."""
