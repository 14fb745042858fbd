"""`gtpo doctor`: what this machine can do, and a self-test."""
