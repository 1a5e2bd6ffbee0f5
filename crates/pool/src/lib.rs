//! Memory that several nodes map: media, superblock, chunks, pins.
