//! Tests of frames.
