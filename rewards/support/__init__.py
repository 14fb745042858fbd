"""What both `gtpo/` and `evalkit/` stand on: errors, files, console. Kept in the leaf package because neither
of the two may import the other.
"""
