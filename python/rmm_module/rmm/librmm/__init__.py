"""What RMM has of its C++ library."""
