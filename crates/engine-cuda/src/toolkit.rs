//! NVIDIA's libraries, found at run time, so that everything builds and starts on a machine without a GPU.
