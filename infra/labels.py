"""What may name an agent, a session or a key's owner.

Owns: the one rule for it; such names reach logs, tables and the broker.
Never: where a label comes from.
"""

MAX_LABEL_CHARS = 128


def is_label(text: str) -> bool:
    """Printable and short, so that it cannot move a cursor, break a line or fill a table."""
    return 0 < len(text) <= MAX_LABEL_CHARS and text.isprintable()
