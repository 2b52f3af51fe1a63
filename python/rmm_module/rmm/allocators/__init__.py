"""The allocators of other libraries, in a module for each."""
