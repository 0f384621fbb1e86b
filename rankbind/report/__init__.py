"""Findings made readable: for a person and for a program."""
