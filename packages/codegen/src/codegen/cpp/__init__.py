"""C++ emission: loop kernels to one header-free translation unit, and the compiler that builds it."""
