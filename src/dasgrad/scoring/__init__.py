"""How much each example would move the parameters."""

from dasgrad.scoring.scorer import ExampleScorer

__all__ = ["ExampleScorer"]
