"""Models, adapters and interventions of tests/data: parts of make_reference.py, which other scripts share."""
