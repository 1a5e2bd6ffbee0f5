//! A checkpoint at rest: format, builder, reader, catalog, archive.
