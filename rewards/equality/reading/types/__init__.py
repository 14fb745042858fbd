"""The table of types: what is one file here is read, compared and searched for work left, with no other line of code.

A new type is a subclass of `Kind` in a file of its own and its name in this table, in which the first that reads a
text has it.
"""

from gtpo.rewards.equality.answers import Kind
from gtpo.rewards.equality.reading.types.date import Date
from gtpo.rewards.equality.reading.types.mixed_units import MixedUnits
from gtpo.rewards.equality.reading.types.named_parts import NamedParts
from gtpo.rewards.equality.reading.types.piecewise import Piecewise
from gtpo.rewards.equality.reading.types.residue import Residue
from gtpo.rewards.equality.reading.types.vector import Vector

TYPES: tuple[type[Kind], ...] = (Date, MixedUnits, NamedParts, Piecewise, Residue, Vector)
