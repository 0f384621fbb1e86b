"""The version of rankbind."""

__version__ = "0.1.0"
