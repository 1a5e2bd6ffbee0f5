//! The agent of one machine: clones and their registry, pins, templates.
