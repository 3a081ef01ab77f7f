"""What TransformerLens and nnsight compute for tests/data/circuits: parts of make_circuit_reference.py, one for each environment."""
