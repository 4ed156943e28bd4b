"""Exit codes that several commands share.

Owns: the numbers and what they mean.
Never: decides how a command ends.
"""

INTERRUPTED = 130  # what a shell calls a program ended by Ctrl-C
