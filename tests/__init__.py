"""Tests that state facts; `typechecker` runs every annotation of the package under pytest."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as in mypy
