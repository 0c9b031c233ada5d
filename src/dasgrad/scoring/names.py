"""What a score is called."""

from dasgrad.scoring.scorer import ExampleScorer


def score_name(scorer: ExampleScorer) -> str:
    """The score's own name; ``"function"`` for the user's own, whose address differs between copies and processes."""
    return scorer.score if isinstance(scorer.score, str) else "function"
