"""A command line taken apart as the engine's own argparse does: prefixes, aliases, choices, refusals."""
