"""How much of anything is looked at, computed or awaited: every limit of this package in one place."""

from __future__ import annotations

MAX_CORES = 10  # Texts that an answer is judged as while the words around it are read away
MAX_STATEMENT = 600  # Characters of a sentence that is read for its value
ANSWERS_KEPT = 1024  # Answers kept as read: a question's gold and its candidates come again and again
PROBLEM_CHARACTERS = 8_000  # Of a problem's text that are looked at, from its end: the question comes last
PROBLEM_EXPRESSIONS = 400
MAX_CHARACTERS = 3_000  # Of an answer or gold; longer ones are REJECTED, as beyond each of the next three
MAX_NESTING = 40  # Open brackets of any kind at one place
MAX_DIGITS = 200  # Digits in one run
MAX_TOKENS = 800  # Numbers, names, commands and operators together
MAX_TEXT = 200_000  # Characters of a completion that are looked at, counted from its end: answers come last
BRACE_REACH = 10_000  # Characters of a group; a longer one is taken for one that never closes
MAX_JOINED = 100  # Boxes that may form one answer
MAX_OPEN_BOXES = 20  # Boxes that never close, after which the search is given up: each costs a scan of the text
BOX_REACH = 400  # Characters from one box to the next beyond which they are never one answer
VALUE_REACH = 5_000  # Characters from the end in which the last value of a completion is sought
MATH_VERIFY_REACH = 10_000  # Characters of a completion that Math-Verify is given, counted from its end
MAX_DECIMAL_EXPONENT = 5_000  # Of `1e5`
UNIT_WORDS = 6  # Words of a unit; more are a sentence
MAX_DEPTH = 12  # Answers within answers; expressions may nest deeper
DIGITS = 60  # Decimal digits of arithmetic that is not exact
MAX_EXACT_BITS = 20_000  # Of a fraction that stays exact
MAX_MAGNITUDE_BITS = 2_000_000  # Of any number; towers of powers are beyond it
MAX_FACTORIAL = 3_000  # Its argument
COMPARISON_DIGITS = 3_000  # Digits that a comparison may take; what needs more is refused (TooBig)
START_ALLOWANCE_S = 180.0  # For a worker on a loaded machine to start; a task's own clock starts after it
GROW_AFTER_S = 0.2  # A pool of one worker doubles each time that a caller has waited so long, and tasks too
RETRY_AFTER_S = 60.0  # A pool whose next worker was refused asks for another after so long
AHEAD_BYTES = 32_768  # Tasks sent to a worker before their turn: half of what a pipe holds
ORPHAN_GRACE_S = 2.0  # Beyond the timeout, after which a worker whose caller is gone ends itself
PROCESSOR_SHARE = 0.5  # Of the timeout, in processor time: reached first unless the machine has other work to do
