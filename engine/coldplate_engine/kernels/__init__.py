"""CPU kernels in C++: built once on first use, with a pure-torch path of equal results beside them."""
