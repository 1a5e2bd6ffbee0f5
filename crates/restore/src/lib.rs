//! Image to process: the template, the container's init, the clone.
