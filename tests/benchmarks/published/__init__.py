"""The projection against tables that others measured: see ``__main__``."""
