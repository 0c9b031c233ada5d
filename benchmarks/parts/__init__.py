"""What several benchmarks share: problems, methods, peers, ways to measure. None of these is a question of its own."""
