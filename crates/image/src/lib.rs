//! A checkpoint at rest: format, builder, reader, catalog, archive.

pub mod catalog;
