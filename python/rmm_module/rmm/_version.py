"""The version of RMM whose names these are."""

__version__ = "26.10.00"
__git_commit__ = ""
